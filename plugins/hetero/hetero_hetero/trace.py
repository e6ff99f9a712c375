"""The log of a selection: the procedure that selected each part of the graph, and on request the text of its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from hetero_hetero.digraph import Digraph, list_bits

Kind = Literal["root", "merge", "failed merge", "rollback"]
Note = Callable[[Kind, int, Sequence[int], int, int], None]
"""Takes a step of a growth: its kind, its node, the members after it, and the bits of rejected nodes and of nodes between members."""

MOST_CHARACTERS = 200_000
"""The length at which the text of the steps ends; the list of the subgraphs follows in any case."""

_TITLES = {"root": "Take root", "merge": "Merge", "failed merge": "Cannot merge", "rollback": "Roll back"}


class SelectionLog:
    """The log of a selection. `procedure_of_node` maps the number of each node to the procedure that selected its subgraph.

    Steps are noted only if the log `traces`. Nodes of a part are numbered by its own positions.
    """

    def __init__(self, name: Callable[[int], str] = str, *, traces: bool = False) -> None:
        self.name, self.traces = name, traces
        self.procedure_of_node: dict[int, str] = {}
        self._lines: list[str] = []
        self._room = MOST_CHARACTERS
        self._left_out = 0
        self._index: Sequence[int] = ()
        self._step = 0
        self._start = (0, self._room, 0)

    def begin_part(self, part: Digraph, procedure: str, heading: str) -> None:
        """Says which procedure selects the subgraphs of a part of the graph."""
        self._start = (len(self._lines), self._room, self._left_out)
        self.procedure_of_node |= dict.fromkeys(part.index_of_position, procedure)
        self._index = part.index_of_position
        self.note(f"Part of {len(part)} nodes that begins with {self._list([0] if len(part) else [])}")
        self.note(heading)

    def restart_part(self, part: Digraph, procedure: str, heading: str) -> None:
        """Discards the notes on the present part, because another procedure selects it now."""
        length, self._room, self._left_out = self._start
        del self._lines[length:]
        self.begin_part(part, procedure, heading)

    def note(self, line: str) -> None:
        """Notes a line."""
        if self.traces and self._room > 0:
            self._lines.append(line)
            self._room -= len(line) + 1

    def begin_walk(self, roots: Iterable[int]) -> Note:
        """Notes the possible roots; returns the callback that notes each step of the growth from the first root."""
        self.note(f"  Possible roots: {self._list(roots)}")
        self._step = 0
        return self._note_step

    def end_walk(self) -> None:
        """Notes the end of a growth."""
        self.note(f"  {self._step + 1}. No adjacent node is left: end")

    def end_round(self, candidates: Iterable[Sequence[int]], subgraph: Sequence[int], rest: Iterable[int]) -> None:
        """Notes all candidates of a round, unchanged candidates of earlier rounds included, and the taken subgraph."""
        if self._room > 0:
            self.note("  Possible roots: [], end")
            self.note(f"  Candidates: {', '.join(self._list(sorted(candidate)) for candidate in candidates)}")
            self.note(f"  Largest: {self._list(sorted(subgraph))}. Left: {self._list(rest)}")

    def text(self, policy: str, subgraphs: Iterable[tuple[object, Sequence[int]]]) -> str:
        """Returns the noted steps, the number of steps that were left out, and the subgraphs."""
        lines = [f"Policy {policy}", *self._lines]
        if self._left_out:
            lines.append(f"... {self._left_out} more steps are left out")
        lines.append("Subgraphs, in an order in which they can run:")
        lines += [f"    {device}: [{','.join(map(self.name, nodes))}]" for device, nodes in subgraphs]
        return "\n".join(lines) + "\n"

    def _note_step(self, kind: Kind, node: int, members: Sequence[int], rejected: int, crossed: int) -> None:
        self._step += 1
        if self._room <= 0:
            self._left_out += 1
            return
        between = [place for place in list_bits(crossed) if place not in set(members)]
        blocking = [place for place in between if rejected >> place & 1]
        condition = "holds"
        if blocking:
            condition = f"broken: a path leaves through {self._list(blocking)} and returns"
        elif between:
            path = self._list(between)
            condition = f"holds so far; a path through {path} returns, and it is open whether that will be merged"
        self.note(f"  {self._step}. {_TITLES[kind]} {self._list([node])}")
        self.note(f"       subgraph {self._list(sorted(members))}, rejected {self._list(list_bits(rejected))}")
        self.note(f"       condition {condition}")

    def _list(self, nodes: Iterable[int]) -> str:
        return "[" + ",".join([self.name(self._index[node]) for node in nodes]) + "]"
