"""The boxes and lines of a drawing of a plan: subgraphs, groups of the network's inputs and outputs, and the values between them."""

from __future__ import annotations

from dataclasses import dataclass

from hetero_core.plan import Boundary, Plan


@dataclass(frozen=True, slots=True)
class Terminal:
    """Inputs of the network that the same subgraphs read, or the outputs that one subgraph makes."""

    values: tuple[str, ...]
    is_input: bool

    @property
    def label(self) -> str:
        """The name of the only value, or how many there are."""
        if len(self.values) == 1:
            return self.values[0]
        return f"{len(self.values)} {'inputs' if self.is_input else 'outputs'}"


@dataclass(frozen=True, slots=True)
class PlanLink:
    """All values that go from one place to another; `boundaries` are empty on the way to an output."""

    source: int
    target: int
    boundaries: tuple[Boundary, ...] = ()

    @property
    def nbytes(self) -> int | None:
        """The bytes of all values, None where one is open or nothing is known."""
        sizes = [boundary.nbytes for boundary in self.boundaries if boundary.nbytes is not None]
        return sum(sizes) if sizes and len(sizes) == len(self.boundaries) else None


@dataclass(frozen=True, slots=True)
class Links:
    """Places are numbered: first the subgraphs by index, then the terminals."""

    terminals: tuple[Terminal, ...]
    links: tuple[PlanLink, ...]


def find_links(plan: Plan) -> Links:
    """Returns what a plan's drawing joins, in the order of the boundaries; values between the same two places are one link."""
    values_of_readers: dict[tuple[int, ...], list[Boundary]] = {}
    between: dict[tuple[int, int], list[Boundary]] = {}
    for boundary in plan.boundaries:
        if boundary.producer is None:
            values_of_readers.setdefault(boundary.consumers, []).append(boundary)
            continue
        for consumer in boundary.consumers:
            between.setdefault((boundary.producer, consumer), []).append(boundary)
    terminals: list[Terminal] = []
    links = [PlanLink(source, target, tuple(group)) for (source, target), group in between.items()]
    for readers, group in values_of_readers.items():
        place = len(plan.stages) + len(terminals)
        terminals.append(Terminal(tuple(entry.value for entry in group), is_input=True))
        links += [PlanLink(place, reader, tuple(group)) for reader in readers]
    crossing = {boundary.value for boundary in plan.boundaries}
    for stage in plan.stages:
        returned = tuple(value for value in stage.outputs if value not in crossing)
        if returned:
            links.append(PlanLink(stage.index, len(plan.stages) + len(terminals)))
            terminals.append(Terminal(returned, is_input=False))
    return Links(tuple(terminals), tuple(links))
