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
from hetero_core.errors import NetworkReadError, UnsupportedNodesError
from hetero_core.frontends.shared_core import find_core
from hetero_core.network.initializers import Initializer
from hetero_core.network.reader import describe_cause, export_program
from hetero_core.network.types import HOST

if TYPE_CHECKING:
    from torch import Tensor, fx

    from hetero_core.network.graph import Network
    from hetero_core.runtime.executable import ExecutableNetwork

    Compiled = Callable[..., Sequence[Any]]


class TorchFallbackWarning(UserWarning):
    """A graph of torch.compile runs in torch and not on a device; the message names the graph and the reason."""


class _RunsInTorchError(Exception):
    """The reason for which a graph stays in torch."""


def compile_graph(graph: fx.GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None) -> Compiled:
    """Returns the function that computes a graph of dynamo. `options`: "device", "freezing", and keys of the device's configuration.

    Raises: errors of device names and configuration, and of the load. A graph that cannot be exported, or that the device refuses,
    runs in torch with a TorchFallbackWarning.
    """
    import torch

    config = dict(options or {})
    device, is_frozen = config.pop("device", "AUTO"), bool(config.pop("freezing", False))
    core = find_core()
    core.resolve_config(device, config)  # a wrong option is an error, also of a graph that stays in torch
    try:
        _fix_numbers(graph)
        with torch._guards.tracing(None):  # the symbols and guards of dynamo stay as they are
            exported = _export_graph(graph, inputs, core.read_network)
        compiled = CompiledGraph(exported, lambda network: core.load_network(network, device, config), is_frozen=is_frozen)
        compiled.find_network(inputs)
    except (_RunsInTorchError, NetworkReadError, UnsupportedNodesError) as error:
        calls = [node for node in graph.graph.nodes if node.op.startswith("call")]
        lines = [
            line.strip() for node in calls for line in (node.stack_trace or "").splitlines() if line.strip().startswith("File ")
        ]
        where = f"a graph of {len(calls)} operations ({lines[-1] if lines else 'without calls'})"
        warnings.warn(f"{where} runs in torch, not on {device}: {error}", TorchFallbackWarning, stacklevel=2)
        return graph.forward  # type: ignore[no-any-return]  # untyped
    return compiled


# From a graph of dynamo to a network


@dataclass(frozen=True)
class ExportedGraph:
    """A graph as a network: the positions, among the values of a call, of the network's inputs and of the weights among them."""

    network: Network
    positions: tuple[int, ...]
    weights: frozenset[int]
    devices: tuple[Any, ...]
    """For each result its device, or None if it is no tensor."""
    find_sizes: Callable[..., Sequence[Any]]
    """Computes the results that are no tensors."""


def _list_nodes(graph: fx.GraphModule, kind: str) -> list[fx.Node]:
    return [node for node in graph.graph.nodes if node.op == kind]


def _find_example(node: Any) -> Any:
    """Returns the value that dynamo has recorded: a tensor without content, or a symbolic size."""
    return getattr(node, "meta", {}).get("example_value")


def _fix_numbers(graph: fx.GraphModule) -> None:
    """Lets dynamo record the graph again if Python's floats are inputs of it: then they are constants, with a guard for each.

    dynamo passes a float as a tensor; attributes of ONNX, as the epsilon of a normalization, have to be constants. A backend has no
    public way to ask for it: these are torch 2.13's names, and this function alone uses them. Raises: _RunsInTorchError without them.
    """
    inputs = _list_nodes(graph, "placeholder")
    floats = [_find_example(node) for node in inputs if getattr(node.meta.get("grapharg"), "pass_arg_as_tensor", False)]
    if not floats:
        return
    try:
        from torch._dynamo.exc import TensorifyScalarRestartAnalysis
        from torch._dynamo.symbolic_convert import TensorifyState

        for example in floats:
            TensorifyState.specialize(example.item_memo.node._expr.name)
    except (ImportError, AttributeError) as error:
        raise _RunsInTorchError(f"a float is an input of it ({error}); set torch._dynamo.config.specialize_float = True") from error
    raise TensorifyScalarRestartAnalysis


def _export_graph(graph: fx.GraphModule, inputs: Sequence[Any], read: Callable[[Any], Network]) -> ExportedGraph:
    """Returns the graph as a network with open sizes. Raises: _RunsInTorchError, NetworkReadError."""
    import torch

    if torch.is_grad_enabled() and any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs):
        raise _RunsInTorchError("gradients are recorded; call the model under torch.no_grad() or torch.inference_mode()")
    placeholders, results = _list_nodes(graph, "placeholder"), _list_nodes(graph, "output")[0].args[0]
    tensors = [node for node in results if isinstance(_find_example(node), torch.Tensor)]
    opened, positions = _read_sizes_from_tensors(_with_results(graph, tensors))
    has_layers = _write_out_fused_calls(opened)
    try:
        # The integer of a size is read without a guard, which would make the graph one for this size alone.
        values = tuple(v.detach() if isinstance(v, torch.Tensor) else v.node.hint for v in (inputs[p] for p in positions))
        shapes = tuple(_open_sizes(_find_example(placeholders[p]), has_layers=has_layers) for p in positions)
        program = torch.export.export(opened, values, dynamic_shapes=shapes)
    except Exception as error:
        raise _RunsInTorchError(f"torch.export refuses it: {describe_cause(error)}") from error
    for node in _list_draws(program):
        raise _RunsInTorchError(f"{node.target} draws random numbers, which only torch draws from its own generator")
    return ExportedGraph(
        read(export_program(program)),
        tuple(positions),
        frozenset(p for p in positions if "_dynamo_static_input_type" in placeholders[p].meta.get("tensor_dict", {})),
        tuple(_find_example(node).device if node in tensors else None for node in results),
        _with_results(graph, [node for node in results if node not in tensors]).forward,
    )


def _with_results(graph: fx.GraphModule, results: Sequence[Any]) -> fx.GraphModule:
    """Returns a graph with the same inputs that computes only these results."""
    from torch import fx

    copied = fx.Graph()
    copy_of_node: dict[fx.Node, fx.Node] = {}
    copied.graph_copy(graph.graph, copy_of_node)
    copied.output(tuple(copy_of_node[each] if isinstance(each, fx.Node) else each for each in results))
    copied.eliminate_dead_code()
    return fx.GraphModule(graph, copied)


def _read_sizes_from_tensors(graph: fx.GraphModule) -> tuple[fx.GraphModule, list[int]]:
    """Returns the graph with sizes read from its tensors, not passed beside them, and the positions of its remaining inputs."""
    import torch

    placeholders = _list_nodes(graph, "placeholder")
    axis_of_size: dict[str, tuple[fx.Node, int]] = {}
    for node in placeholders:
        for axis, size in enumerate(getattr(_find_example(node), "shape", ())):
            axis_of_size.setdefault(str(size), (node, axis))
    positions = []
    for position, node in enumerate(placeholders):
        source = axis_of_size.get(str(_find_example(node))) if isinstance(_find_example(node), torch.SymInt) else None
        if source is None:
            positions.append(position)
            continue
        with graph.graph.inserting_after(placeholders[-1]):
            node.replace_all_uses_with(graph.graph.call_function(torch.ops.aten.sym_size.int, source))
        graph.graph.erase_node(node)
    graph.recompile()
    return graph, positions


def _write_out_fused_calls(graph: fx.GraphModule) -> bool:
    """Replaces the fused kernels of torch's transformer layers, which torch.onnx does not know, by formulas; says if there are any."""
    import torch

    formulas: dict[Any, Any] = {torch._transformer_encoder_layer_fwd: _compute_encoder_layer}
    # Query, key and value are the same tensor.
    formulas[torch._native_multi_head_attention] = lambda x, key, value, *rest: _compute_attention(x, *rest)
    fused = [node for node in _list_nodes(graph, "call_function") if node.target in formulas]
    for node in fused:
        node.target = formulas[node.target]
    graph.recompile()
    return bool(fused)


def _compute_attention(x: Tensor, size: int, heads: int, projection: Tensor, bias: Tensor, out: Tensor, out_bias: Tensor,
                       mask: Tensor | None, has_weights: bool, is_mean: bool, mask_type: int | None) -> tuple[Any, Any]:  # fmt: skip
    """Returns the attention of x to itself, and its weights. A mask, true where no attention goes, has (batch, keys) for type 1."""
    from torch.nn import functional

    q, k, v = functional.linear(x, projection, bias).unflatten(-1, (3, heads, size // heads)).permute(2, 0, 3, 1, 4)
    scores = q @ k.transpose(2, 3) * (size // heads) ** -0.5
    if mask is not None:
        scores = scores.masked_fill((mask[:, None, None] if mask_type == 1 else mask).bool(), float("-inf"))
    weights = scores.softmax(-1)
    result = functional.linear((weights @ v).transpose(1, 2).flatten(2), out, out_bias)
    return result, (weights.mean(1) if is_mean else weights) if has_weights else None


def _compute_encoder_layer(x: Tensor, size: int, heads: int, *rest: Any) -> Any:
    """Returns a layer of an encoder. Source: torch.nn.TransformerEncoderLayer.forward."""
    from torch.nn import functional

    *projections, has_gelu, norm_first, epsilon, scale, shift, scale_2, shift_2, wide, bias, narrow, bias_2, mask, mask_type = rest
    activate = functional.gelu if has_gelu else functional.relu

    def attend(y: Any) -> Any:
        arguments: tuple[Any, ...] = (*projections, mask, False, True, mask_type)
        return _compute_attention(y, size, heads, *arguments)[0]

    def feed(y: Any) -> Any:
        return functional.linear(activate(functional.linear(y, wide, bias)), narrow, bias_2)

    def norm(y: Any, weight: Tensor, offset: Tensor) -> Any:
        return functional.layer_norm(y, (size,), weight, offset, epsilon)

    if norm_first:
        x = x + attend(norm(x, scale, shift))
        return x + feed(norm(x, scale_2, shift_2))
    x = norm(x + attend(x), scale, shift)
    return norm(x + feed(x), scale_2, shift_2)


def _open_sizes(example: Any, *, has_layers: bool) -> Any:
    """Returns the part of an input's shape that changes between calls, as torch.export describes it. Raises: _RunsInTorchError."""
    import torch

    if isinstance(example, torch.SymInt):
        return torch.export.Dim.DYNAMIC
    if not isinstance(example, torch.Tensor):
        raise _RunsInTorchError(f"its input {example!r} is no tensor and no integer")
    # A fused layer leaves its width open, which its weights decide. Any other size that torch.export would fix is refused by DYNAMIC.
    dims = [torch.export.Dim.DYNAMIC] * (example.ndim - 1) + [torch.export.Dim.AUTO if has_layers else torch.export.Dim.DYNAMIC]
    is_open = [isinstance(size, torch.SymInt) and size.node.maybe_as_int() is None for size in example.shape]
    return {axis: dims[axis] for axis, opens in enumerate(is_open) if opens}


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
    """A network with the weights of one module as constants, and a mark of each weight: a copy, or the stamp of frozen weights."""

    network: ExecutableNetwork
    tensors: tuple[ref[Tensor], ...]
    marks: tuple[Any, ...]


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
        specs = list(zip(exported.positions, exported.network.inputs, strict=True))
        self._weights = [(position, spec) for position, spec in specs if position in exported.weights]
        self._inputs = [(position, spec) for position, spec in specs if position not in exported.weights]

    def __call__(self, *values: Any) -> list[Any]:
        """Returns the results of the graph. Raises: as `ExecutableNetwork.infer`, and as a load for changed weights."""
        network = self.find_network(values)
        pairs = zip(self._inputs, network.inputs, strict=True)
        feeds = [array_of_tensor(values[position], spec.memory) for (position, _), spec in pairs]
        outputs, sizes = iter(network.infer(feeds).values()), iter(self._exported.find_sizes(*values))
        return [next(sizes) if device is None else tensor_of_array(next(outputs), device) for device in self._exported.devices]

    def find_network(self, values: Sequence[Any]) -> ExecutableNetwork:
        """Returns the network with the present weights; loads it for new and for changed weights. Raises: as a load does."""
        weights = [values[position] for position, _ in self._weights]
        key = tuple(map(id, weights))
        is_same = (lambda weight, mark: _stamp(weight) == mark) if self._is_frozen else _has_bits
        with self._lock:
            loaded = self._loaded.get(key)
            rows = zip(loaded.tensors, weights, loaded.marks, strict=True) if loaded is not None else ()
            if loaded is None or not all(tensor() is weight and is_same(weight, mark) for tensor, weight, mark in rows):
                self._loaded = {k: each for k, each in self._loaded.items() if all(tensor() is not None for tensor in each.tensors)}
                loaded = self._loaded[key] = self._load_weights(weights)
        return loaded.network

    def _load_weights(self, weights: Sequence[Tensor]) -> LoadedWeights:
        # If they are promised not to change, the caller's own memory becomes the constants.
        copies = [weight.detach() if self._is_frozen else weight.detach().clone() for weight in weights]
        pairs = zip(self._weights, copies, strict=True)
        constants = {spec.name: Initializer.of_array(array_of_tensor(copy)) for (_, spec), copy in pairs}
        network = self._exported.network
        initializers = MappingProxyType({**network.initializers, **constants})
        fixed = replace(network, inputs=tuple(spec for _, spec in self._inputs), initializers=initializers)
        marks = map(_stamp, weights) if self._is_frozen else copies
        return LoadedWeights(self._load(fixed), tuple(map(ref, weights)), tuple(marks))


def _stamp(tensor: Tensor) -> tuple[int, int]:
    """Returns the address of a tensor, and how often torch has changed it; torch does not count for tensors of inference mode."""
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version


def _has_bits(tensor: Tensor, copy: Tensor) -> bool:
    """Says whether two tensors have the same bits; as numbers, NaN would not equal itself."""
    import torch

    if tensor.dtype != copy.dtype or tensor.shape != copy.shape or tensor.is_complex():
        return bool(torch.equal(tensor, copy))
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    if tensor.is_contiguous() and copy.is_contiguous() and tensor.nbytes % 8 == 0:
        tensor, copy, integers = tensor.reshape(-1), copy.reshape(-1), torch.int64  # the fastest to compare
    return bool(torch.equal(tensor.detach().view(integers), copy.view(integers)))


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
