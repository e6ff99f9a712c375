"""Choices for groups that differ in names alone, made once: networks repeat their blocks, and long chains consist of few kinds of nodes.

A step function answers by what a `Site` shows: operators and their attributes, constants, and of everything else types, shapes, strides
and zeros around it, never by names. Where all of it is equal, the choice of the first group serves, with the names of the group at hand.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Mapping
from typing import Any

from hetero_core.network.graph import Node
from hetero_core.network.types import TypeNumbers
from hetero_cpu.planning.recipe import NO_HALO, Choice, Join, Recipe, Site, Views
from hetero_cpu.providers import choose_step

AS_WRITTEN = 2
"""The version of marshal that writes equal values alike, whoever else refers to them."""


class AlikeGroups:
    """The choices of one plan, whose sites share their maps."""

    __slots__ = ("_choices", "_find_root", "_numbers")

    def __init__(self, find_root: Callable[[str], str | None]) -> None:
        """`find_root` returns the value whose memory a value lies in."""
        self._find_root = find_root
        self._numbers = TypeNumbers()
        self._choices: dict[tuple[Any, ...], tuple[Choice | None, tuple[str, ...]]] = {}

    def choose(self, site: Site) -> Choice | None:
        """Returns `choose_step(site)`, or what that gave for a site like it, with the names of this one."""
        described = self._describe(site)
        if described is None:
            return choose_step(site)
        key, names = described
        earlier = self._choices.get(key)
        if earlier is None:
            choice = choose_step(site)
            self._choices[key] = choice, names
            return choice
        choice, own_names = earlier
        return choice if choice is None or own_names == names else _rename(choice, dict(zip(own_names, names, strict=True)))

    def _describe(self, site: Site) -> tuple[tuple[Any, ...], tuple[str, ...]] | None:
        """Returns all that a step function sees of a site but names, and these in the order in which the group has them.

        None if values that the group reads share memory, and for attributes that are no plain values.
        """
        places: dict[str, int] = {}
        described: list[Any] = [site.readers, None if site.output_halo is NO_HALO else site.output_halo]
        try:
            for node in site.group.members:
                _describe_node(node, described, places)
        except ValueError:
            return None
        described += [places.get(extra.value, -1) for extra in site.group.epilogue]
        types, constants, prototypes, halos = site.types, site.constants, site.prototypes, site.halos
        roots = set()
        for value in places:
            described.append(self._numbers.find(types.get(value)))
            if value in constants:
                # One name, one array: others may be packed otherwise, and the plan reads this one.
                described.append(value)
            elif (prototype := prototypes.get(value)) is not None:
                described += (prototype.dtype, prototype.shape, prototype.strides, halos.get(value))
                root = self._find_root(value)
                if root in roots:
                    return None
                roots.add(root)
        return tuple(described), tuple(places)


def _describe_node(node: Node, described: list[Any], places: dict[str, int]) -> None:
    """Appends all of a node but names; each value gets the next of `places`. Raises: ValueError for what marshal cannot write."""
    attributes = marshal.dumps(tuple(node.attributes.items()), AS_WRITTEN) if node.attributes else b""
    described += (node.op_type, node.domain, node.since_version, node.opset, attributes)
    for value in node.inputs:
        described.append(places.setdefault(value, len(places)) if value else -1)
    described.append(None)
    for value in node.outputs:
        described.append(places.setdefault(value, len(places)) if value else -1)


def _rename(choice: Choice, names: Mapping[str, str]) -> Choice:
    """Returns a choice for values of other names."""
    if isinstance(choice, Recipe):
        return Recipe(
            tuple([names[value] for value in choice.reads]),
            choice.bind,
            choice.scratch,
            choice.is_channels_last,
            choice.overwrites,
            choice.kernels,
            choice.calls_functions,
            choice.reaches,
            choice.parts,
        )
    if isinstance(choice, Views):
        return Views(names[choice.source], choice.make)
    return Join(tuple([names[value] for value in choice.sources]), choice.axis, choice.is_channels_last)
