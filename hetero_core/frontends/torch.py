"""`torch.compile(model, backend="hetero")`: the graphs that dynamo records run on a device of hetero.

    graph --torch.export--> program with open sizes --torch.onnx--> model --Core--> network with the weights as constants
    tensors --DLPack--> arrays --infer--> arrays --DLPack--> tensors

The entry point group `torch_dynamo_backends` names `compile_graph`. torch is imported inside functions only: importing this module needs
no torch. A graph that cannot be exported, or that a device refuses, runs in torch: a TorchFallbackWarning says why.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from hetero_core.dtypes import numpy_dtype
from hetero_core.errors import InputShapeError, NetworkReadError, UnsupportedNodesError
from hetero_core.frontends.shared_core import get_core
from hetero_core.network.initializers import Initializer
from hetero_core.network.torch_programs import describe_cause, export_program
from hetero_core.network.types import HOST

if TYPE_CHECKING:
    from torch import Tensor, fx

    from hetero_core.network.graph import Network
    from hetero_core.runtime.executable import ExecutableNetwork

    Compiled = Callable[..., Sequence[Any]]

FREEZING = "freezing"
"""The option, named as inductor's, by which the caller promises to change weights only in ways that torch counts."""

MOST_RELOADS = 3
"""How often changed weights become constants again; a weight that changes once more becomes an input."""


class TorchFallbackWarning(UserWarning):
    """A graph of torch.compile runs in torch and not on a device; the message names the graph and the reason."""


class _RunsInTorchError(Exception):
    """The reason for which a graph stays in torch."""


def compile_graph(graph: fx.GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None) -> Compiled:
    """Returns the function that computes a graph of dynamo. `options`: "device", "freezing", and keys of the device's configuration.

    Raises: errors of device names and configuration, and of the load. What cannot be exported, and what the device refuses, is computed
    by torch, with a TorchFallbackWarning.
    """
    import torch

    _fix_numbers(graph)
    config = dict(options or {})
    device, is_frozen = config.pop("device", "AUTO"), bool(config.pop(FREEZING, False))
    core = get_core()
    core.resolve_config(device, config)  # a wrong option is an error, also of a graph that stays in torch
    if not any(_is_computed(node) for node in _list_results(graph)):
        return graph.forward  # type: ignore[no-any-return]  # sizes alone
    try:
        with torch._guards.tracing(None):  # the symbols and guards of dynamo stay as they are
            exported = _export_graph(graph, inputs, core.read_network)
        compiled = CompiledGraph(exported, lambda network: core.load_network(network, device, config), is_frozen=is_frozen)
        compiled.find_network(inputs)
    except (_RunsInTorchError, NetworkReadError, UnsupportedNodesError) as error:
        _warn_of_fallback(graph, device, error)
        return graph.forward  # type: ignore[no-any-return]  # untyped

    def run(*values: Any) -> Sequence[Any]:
        try:
            return compiled(*values)
        except InputShapeError as error:  # torch.export fixed a size that dynamo left open
            _warn_of_fallback(graph, device, error)
            return graph.forward(*values)  # type: ignore[no-any-return]  # untyped

    return run


def _warn_of_fallback(graph: fx.GraphModule, device: str, reason: Exception) -> None:
    """Says that a graph runs in torch, with its number of operations, and the line of the program at which it begins."""
    calls = [node for node in graph.graph.nodes if node.op.startswith("call")]
    lines = [line.strip() for node in calls for line in (node.stack_trace or "").splitlines() if line.strip().startswith("File ")]
    where = f" ({lines[-1]})" if lines else ""
    message = f"a graph of {len(calls)} operations{where} runs in torch, not on {device}: {reason}"
    warnings.warn(message, TorchFallbackWarning, stacklevel=3)


# From a graph of dynamo to a network


@dataclass(frozen=True)
class ExportedGraph:
    """A graph as a network: for each input of the network the position of its value among the values of a call, the inputs that are weights,
    and how each result of the graph is made.
    """

    network: Network
    positions: tuple[int, ...]
    weights: frozenset[int]
    devices: tuple[Any, ...]
    """For each result its device, or None if it is no tensor."""
    find_sizes: Callable[..., Sequence[Any]]
    """Computes the results that are no tensors."""


def _fix_numbers(graph: fx.GraphModule) -> None:
    """Lets dynamo record the graph again if Python's floats are inputs of it: then they are constants, with a guard for each.

    dynamo passes a float as a tensor from which the graph reads a number; attributes of ONNX, as the epsilon of a normalization, are constants.
    """
    from torch._dynamo.exc import TensorifyScalarRestartAnalysis
    from torch._dynamo.symbolic_convert import TensorifyState

    floats = [node for node in _list_placeholders(graph) if getattr(node.meta.get("grapharg"), "pass_arg_as_tensor", False)]
    for node in floats:
        TensorifyState.specialize(_find_example(node).item_memo.node._expr.name)
    if floats:
        raise TensorifyScalarRestartAnalysis


def _list_placeholders(graph: fx.GraphModule) -> list[fx.Node]:
    return [node for node in graph.graph.nodes if node.op == "placeholder"]


def _list_results(graph: fx.GraphModule) -> list[Any]:
    return list(next(node for node in graph.graph.nodes if node.op == "output").args[0])


def _is_computed(result: Any) -> bool:
    """Says whether a result of a graph is a tensor."""
    from torch import Tensor

    return isinstance(_find_example(result), Tensor)


def _find_example(node: Any) -> Any:
    """Returns the value that dynamo has recorded: a tensor without content, or a symbolic size."""
    return getattr(node, "meta", {}).get("example_value")


def _export_graph(graph: fx.GraphModule, inputs: Sequence[Any], read: Callable[[Any], Network]) -> ExportedGraph:
    """Returns the graph as a network with open sizes. Raises: _RunsInTorchError, NetworkReadError."""
    import torch

    if torch.is_grad_enabled() and any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs):
        raise _RunsInTorchError("gradients are recorded; call the model under torch.no_grad() or torch.inference_mode()")
    placeholders, results = _list_placeholders(graph), _list_results(graph)
    opened, positions = _read_sizes_from_tensors(_with_results(graph, [node for node in results if _is_computed(node)]))
    _write_out_fused_calls(opened)
    examples = [_find_example(placeholders[position]) for position in positions]
    try:
        program = torch.export.export(
            opened,
            # The integer of a size is read without a guard, which would make the graph one for this size alone.
            tuple(v.detach() if isinstance(v, torch.Tensor) else v.node.hint for v in (inputs[p] for p in positions)),
            dynamic_shapes=tuple(_open_sizes(example) for example in examples),
        )
    except Exception as error:
        raise _RunsInTorchError(f"torch.export refuses it: {describe_cause(error)}") from error
    for node in _list_draws(program):
        raise _RunsInTorchError(f"{node.target} draws random numbers, which only torch draws from its own generator")
    return ExportedGraph(
        read(export_program(program)),
        tuple(positions),
        frozenset(p for p in positions if "_dynamo_static_input_type" in placeholders[p].meta.get("tensor_dict", {})),
        tuple(_find_example(node).device if _is_computed(node) else None for node in results),
        _with_results(graph, [node for node in results if not _is_computed(node)]).forward,
    )


def _with_results(graph: fx.GraphModule, results: Sequence[Any]) -> fx.GraphModule:
    """Returns a graph with the same inputs that computes only these results."""
    from torch import fx

    copied, copy_of_node = fx.Graph(), {}
    copied.graph_copy(graph.graph, copy_of_node)
    copied.output(tuple(copy_of_node[each] if isinstance(each, fx.Node) else each for each in results))
    copied.eliminate_dead_code()
    return fx.GraphModule(graph, copied)


def _read_sizes_from_tensors(graph: fx.GraphModule) -> tuple[fx.GraphModule, list[int]]:
    """Returns the graph with the sizes of its tensors read from these, not passed beside them, and the positions of the remaining inputs."""
    import torch

    placeholders = _list_placeholders(graph)
    axis_of_size: dict[str, tuple[fx.Node, int]] = {}
    for node in placeholders:
        example = _find_example(node)
        for axis, size in enumerate(example.shape if isinstance(example, torch.Tensor) else ()):
            axis_of_size.setdefault(str(size), (node, axis))
    positions = []
    for position, node in enumerate(placeholders):
        if isinstance(_find_example(node), torch.SymInt) and str(_find_example(node)) in axis_of_size:
            with graph.graph.inserting_after(placeholders[-1]):
                size = graph.graph.call_function(torch.ops.aten.sym_size.int, axis_of_size[str(_find_example(node))])
            node.replace_all_uses_with(size)
        else:
            positions.append(position)
    for position in set(range(len(placeholders))) - set(positions):
        graph.graph.erase_node(placeholders[position])
    graph.recompile()
    return graph, positions


def _write_out_fused_calls(graph: fx.GraphModule) -> None:
    """Replaces the fused kernels of torch's transformer layers, which torch.onnx does not know, by their formulas."""
    import torch

    formulas = {torch._transformer_encoder_layer_fwd: _compute_encoder_layer, torch._native_multi_head_attention: _compute_attention}
    for node in graph.graph.nodes:
        node.target = formulas.get(node.target, node.target) if node.op == "call_function" else node.target
    graph.recompile()


def _compute_attention(query: Tensor, key: Tensor, value: Tensor, size: int, heads: int, projection: Tensor, bias: Tensor,
                       out: Tensor, out_bias: Tensor, mask: Tensor | None = None, need_weights: bool = True,
                       average: bool = True, mask_type: int | None = None) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Returns what torch._native_multi_head_attention does; torch calls it with the same tensor for query, key and value.

    A mask is true where no attention goes: of (queries, keys), of (batch, keys) for type 1, or of the shape of the scores for type 2.
    """
    from torch.nn import functional

    q, k, v = functional.linear(query, projection, bias).unflatten(-1, (3, heads, size // heads)).permute(2, 0, 3, 1, 4)
    scores = q @ k.transpose(2, 3) * (size // heads) ** -0.5
    if mask is not None:
        scores = scores.masked_fill((mask[:, None, None] if mask_type == 1 else mask).bool(), float("-inf"))
    shares = scores.softmax(-1)
    result = functional.linear((shares @ v).transpose(1, 2).flatten(2), out, out_bias)
    return result, (shares.mean(1) if average else shares) if need_weights else None


def _compute_encoder_layer(x: Tensor, size: int, heads: int, projection: Tensor, bias: Tensor, out: Tensor, out_bias: Tensor,
                           has_gelu: bool, norm_first: bool, epsilon: float, scale: Tensor, shift: Tensor, scale_2: Tensor,
                           shift_2: Tensor, wide: Tensor, wide_bias: Tensor, narrow: Tensor, narrow_bias: Tensor,
                           mask: Tensor | None = None, mask_type: int | None = None) -> Tensor:  # fmt: skip
    """Returns what torch._transformer_encoder_layer_fwd does. Source: torch.nn.TransformerEncoderLayer.forward."""
    from torch.nn import functional

    def attend(y: Tensor) -> Tensor:
        return _compute_attention(y, y, y, size, heads, projection, bias, out, out_bias, mask, False, mask_type=mask_type)[0]

    def feed(y: Tensor) -> Tensor:
        hidden = functional.linear(y, wide, wide_bias)
        return functional.linear(functional.gelu(hidden) if has_gelu else functional.relu(hidden), narrow, narrow_bias)

    def norm(y: Tensor, weight: Tensor, offset: Tensor) -> Tensor:
        return functional.layer_norm(y, (size,), weight, offset, epsilon)

    if norm_first:
        x = x + attend(norm(x, scale, shift))
        return x + feed(norm(x, scale_2, shift_2))
    x = norm(x + attend(x), scale, shift)
    return norm(x + feed(x), scale_2, shift_2)


def _open_sizes(example: Any) -> Any:
    """Returns the part of an input's shape that changes between calls, as torch.export describes it. Raises: _RunsInTorchError."""
    import torch

    # AUTO: torch.export fixes the sizes that an operation needs, as the width of a layer.
    if isinstance(example, torch.SymInt):
        return torch.export.Dim.AUTO
    if not isinstance(example, torch.Tensor):
        raise _RunsInTorchError(f"its input {example!r} is no tensor and no integer")
    return {axis: torch.export.Dim.AUTO for axis, size in enumerate(example.shape) if isinstance(size, torch.SymInt)}


def _list_draws(program: Any) -> Iterator[fx.Node]:
    """Yields the calls of a program that draw random numbers: not a dropout outside of training, nor with a share of 0."""
    from torch import Tag

    for node in program.graph.nodes:
        if node.op != "call_function" or Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
            continue
        names = [argument.name for argument in node.target._schema.arguments]
        values = {argument.name: argument.default_value for argument in node.target._schema.arguments}
        values |= dict(zip(names, node.args, strict=False)) | node.kwargs
        if not any(values.get(name, True) in (False, 0.0) for name in ("train", "training", "p", "dropout_p")):
            yield node


# Runs


@dataclass
class LoadedWeights:
    """A network with the weights of one module as constants. `copies` are the contents that it was loaded with, `stamps` are torch's own
    counts of changes.
    """

    network: ExecutableNetwork
    tensors: tuple[ref[Tensor], ...]
    copies: tuple[Tensor, ...]
    stamps: tuple[tuple[int, int], ...]
    opened: frozenset[int]
    """The weights that are inputs since they change too often."""
    reloads: int


class CompiledGraph:
    """A graph that runs on a device. Modules of the same structure share it, so it loads a network for each set of weights.

    Weights are constants of the network, so that the device may pack them. Before each run they are compared with these constants; with
    `is_frozen` only their addresses and torch's counts of changes are compared.
    """

    def __init__(self, exported: ExportedGraph, load: Callable[[Network], ExecutableNetwork], *, is_frozen: bool) -> None:
        self._exported = exported
        self._load = load
        self._is_frozen = is_frozen
        self._lock = Lock()
        self._loaded: dict[tuple[int, ...], LoadedWeights] = {}
        self._weights = tuple(sorted(exported.weights))
        self._names = {p: spec.name for p, spec in zip(exported.positions, exported.network.inputs, strict=True)}

    def __call__(self, *values: Any) -> list[Any]:
        """Returns the results of the graph. Raises: as `ExecutableNetwork.infer`, and as a load for changed weights."""
        network = self.find_network(values)
        position_of_name = {name: position for position, name in self._names.items()}
        feeds = {spec.name: array_of_tensor(values[position_of_name[spec.name]], spec.memory) for spec in network.inputs}
        outputs, sizes = iter(network.infer(feeds).values()), iter(self._exported.find_sizes(*values))
        return [next(sizes) if device is None else tensor_of_array(next(outputs), device) for device in self._exported.devices]

    def find_network(self, values: Sequence[Any]) -> ExecutableNetwork:
        """Returns the network with the present weights; loads it for new and for changed weights. Raises: as a load does."""
        weights = tuple(values[position] for position in self._weights)
        key = tuple(map(id, weights))
        with self._lock:
            loaded = self._loaded.get(key)
            if loaded is None or any(tensor() is not weight for tensor, weight in zip(loaded.tensors, weights, strict=True)):
                self._loaded = {k: each for k, each in self._loaded.items() if all(tensor() is not None for tensor in each.tensors)}
                loaded = self._loaded[key] = self._load_weights(weights, frozenset(), reloads=0)
            changed = self._find_changed(loaded, weights)
            if changed:
                opened = loaded.opened | changed if loaded.reloads >= MOST_RELOADS else loaded.opened
                loaded = self._loaded[key] = self._load_weights(weights, opened, reloads=loaded.reloads + 1)
        return loaded.network

    def _find_changed(self, loaded: LoadedWeights, weights: Sequence[Tensor]) -> frozenset[int]:
        """Returns the positions of the weights that are no longer the constants of the network."""
        states = zip(self._weights, weights, loaded.copies, loaded.stamps, strict=True)
        return frozenset(
            position
            for position, weight, copy, stamp in states
            if position not in loaded.opened
            and (_stamp(weight) != stamp if self._is_frozen else not _has_same_bits(weight, copy))
        )

    def _load_weights(self, weights: Sequence[Tensor], opened: frozenset[int], *, reloads: int) -> LoadedWeights:
        # Promised not to change, the caller's own memory becomes the constant.
        copies = tuple(weight.detach() if self._is_frozen else weight.detach().clone() for weight in weights)
        constants = {
            self._names[position]: Initializer.of_array(np.ascontiguousarray(array_of_tensor(copy)))
            for position, copy in zip(self._weights, copies, strict=True)
            if position not in opened
        }
        network = self._exported.network
        fixed = replace(
            network,
            inputs=tuple(spec for spec in network.inputs if spec.name not in constants),
            initializers=MappingProxyType({**network.initializers, **constants}),
        )
        stamps = tuple(map(_stamp, weights))
        return LoadedWeights(self._load(fixed), tuple(map(ref, weights)), copies, stamps, opened, reloads)


def _stamp(tensor: Tensor) -> tuple[int, int]:
    """Returns the address of a tensor, and how often torch has changed it; torch does not count for tensors of inference mode."""
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version


def _has_same_bits(tensor: Tensor, copy: Tensor) -> bool:
    """Says whether two tensors have the same bits; numbers would not equal themselves if they are NaN."""
    import torch

    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(tensor.element_size())
    if integers is None or tensor.dtype != copy.dtype:
        return torch.equal(tensor, copy)
    return torch.equal(tensor.detach().view(integers), copy.view(integers))


def array_of_tensor(value: Any, memory: str = HOST) -> Any:
    """Returns an array over the memory of a tensor on the host, or the tensor itself if it lies in `memory`; else a copy on the host."""
    import torch

    if not isinstance(value, torch.Tensor):
        return np.asarray(value, np.int64)  # a size
    tensor = value.detach()
    if str(tensor.device) == memory:
        return tensor.contiguous()
    tensor = tensor.cpu().contiguous().resolve_conj().resolve_neg()
    name = str(tensor.dtype).removeprefix("torch.")
    if not _is_foreign(name):
        return np.from_dlpack(tensor)
    integers = torch.int16 if tensor.element_size() == 2 else torch.uint8
    return np.from_dlpack(tensor.view(integers)).view(numpy_dtype(name.replace("_", "") if "float8" in name else name))


def tensor_of_array(array: np.ndarray[Any, Any], device: Any) -> Tensor:
    """Returns a tensor on a device of torch; on the host it is a view of the array."""
    import torch

    array = array if array.flags.writeable else array.copy()
    if not _is_foreign(array.dtype.name):
        return torch.from_dlpack(array).to(device)
    integers = np.int16 if array.dtype.itemsize == 2 else np.uint8
    return torch.from_dlpack(array.view(integers)).view(getattr(torch, array.dtype.name)).to(device)


def _is_foreign(name: str) -> bool:
    """Says whether NumPy's DLPack lacks an element type; it is passed as integers of its size."""
    return name in ("bool", "bfloat16") or "float8" in name
