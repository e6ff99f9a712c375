"""Other outputs: converted to another precision or layout, inner values added, or a subset, without the nodes that it does not need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from hetero_core.errors import InvalidNetworkError, enumerate_choices, suggest
from hetero_core.network.border import OutputInfo, dtype_of_precision
from hetero_core.network.graph import Network
from hetero_core.network.hints import drop_hints
from hetero_core.network.renaming import FreshNames
from hetero_core.network.types import TensorType, ValueSpec, has_known_element
from hetero_core.transforms.chains import Chain, check_conversion, find_model_layout, order_axes, read_layout, require_names, splice
from hetero_core.transforms.constants import drop_unread


def change_outputs(
    network: Network, outputs: Mapping[str, OutputInfo], *, add: Sequence[str], only: Sequence[str] | None
) -> Network:
    """Returns the network with these outputs: first `add`, then `only`, then the conversions. Raises: InvalidNetworkError."""
    changed = _add_outputs(network, add)
    if only is not None:
        changed = _select_outputs(changed, only)
    return _convert_outputs(changed, outputs) if outputs else changed


def _add_outputs(network: Network, values: Sequence[str]) -> Network:
    known = {value for node in network.nodes for value in node.writes}
    specs = list(network.outputs)
    for value in values:
        if value in network.names_of_outputs:
            raise InvalidNetworkError(f"'{value}' is an output of network '{network.name}' already; leave it out")
        if value not in known:
            hint = suggest(value, known)
            raise InvalidNetworkError(
                f"network '{network.name}' has no inner value '{value}'{hint or ';'} a value is what a node makes outside of bodies, as "
                f"{', '.join(sorted(known)[:3]) or 'none'}"
            )
        value_type = network.type_of(value)
        if value_type is None or not has_known_element(value_type):
            raise InvalidNetworkError(
                f"value '{value}' of network '{network.name}' cannot be an output: its element type is not known"
            )
        specs.append(ValueSpec(value, value_type))
    return replace(network, outputs=tuple(specs)) if values else network


def _select_outputs(network: Network, names: Sequence[str]) -> Network:
    """Returns the network with these outputs, in this order, and the nodes and inputs that they need."""
    specs = {spec.name: spec for spec in network.outputs}
    require_names(network, "output", names, specs)
    if not names:
        raise InvalidNetworkError(f"network '{network.name}' would have no output; name at least one of {enumerate_choices(specs)}")
    tied = [state for state in network.border.states if state.output not in names]
    if tied:
        raise InvalidNetworkError(
            f"output '{tied[0].output}' of network '{network.name}' is the state of input '{tied[0].input}'; keep it"
        )
    selected = drop_unread(replace(network, outputs=tuple(specs[name] for name in dict.fromkeys(names))))
    needed = {*names, *(value for node in selected.nodes for value in node.reads)}
    was_read = {value for node in network.nodes for value in node.reads} | network.names_of_outputs
    # An input without readers before is part of the model's signature; an input that lost all its readers is removed.
    inputs = tuple(spec for spec in network.inputs if spec.name in needed or spec.name not in was_read)
    names_of_inputs = {spec.name for spec in inputs}
    border = network.border
    return replace(
        selected,
        inputs=inputs,
        affinity=MappingProxyType({name: device for name, device in network.affinity.items() if name in selected.index_of_node}),
        border=replace(
            border,
            defaults=MappingProxyType({name: value for name, value in border.defaults.items() if name in names_of_inputs}),
            replaceable=tuple(name for name in border.replaceable if name in needed),
        ),
    )


def _convert_outputs(network: Network, outputs: Mapping[str, OutputInfo]) -> Network:
    names = FreshNames(network)
    specs = {spec.name: spec for spec in network.outputs}
    require_names(network, "output", outputs, specs)
    layouts = dict(network.border.layouts)
    chains: list[Chain] = []
    for name, info in outputs.items():
        where = f"output '{name}' of network '{network.name}'"
        chain, layout = _describe_steps(network, specs[name], info, names, where)
        if layout:
            layouts[name] = layout
        if not chain.nodes:
            continue
        if name in network.index_of_input or any(state.output == name for state in network.border.states):
            raise InvalidNetworkError(f"{where} is an input or a state, too, whose form is the model's; it cannot be converted")
        chain.rename_end(name)
        specs[name] = ValueSpec(name, chain.type)
        chains.append(chain)
    border = replace(network.border, layouts=MappingProxyType(layouts))
    return splice(drop_hints(network) if chains else network, [], chains, outputs=tuple(specs.values()), border=border)


def _describe_steps(network: Network, spec: ValueSpec, info: OutputInfo, names: FreshNames, where: str) -> tuple[Chain, str]:
    """Returns the steps from the model's output to the requested output, and the layout of the result."""
    if not isinstance(spec.type, TensorType) or spec.type.dtype is None:
        raise InvalidNetworkError(f"{where}: expected a tensor of a known element type to describe, it is {spec.type}")
    hint = network.declarations.hints.get(spec.name)
    # Types that follow from a merely declared shape are inferred again, from proved shapes.
    value_type = spec.type if hint is None else TensorType(spec.type.dtype)
    chain = Chain(network, names, base=spec.name, value=names.value(f"{spec.name}/model"), value_type=value_type)
    layout = network.border.layouts.get(spec.name, "")
    if info.layout is not None or info.model_layout is not None:
        source = find_model_layout(spec, layout or None, info.model_layout, where)
        layout = source if info.layout is None else read_layout(info.layout, len(source), where)
        chain.transpose(order_axes(source, layout, where))
    if info.precision is not None:
        dtype = dtype_of_precision(info.precision, where)
        check_conversion(spec.type.dtype, dtype, where)
        chain.cast(dtype)
    return chain, layout
