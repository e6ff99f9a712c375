"""A network as a program of PyTorch's functions.

The toolkit compiles the order, the slots, the transfers between host and place, and the arithmetic on shapes, which stays with NumPy on the
host; here each of its kernels that would run on tensors is replaced by the function of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hetero_core.contract import Extension
from hetero_core.kernels.execution import ABSENT, Program, Step
from hetero_core.kernels.program import HostOperator, compile_program
from hetero_core.network.graph import Network, iterate_graphs
from hetero_core.network.types import TensorType
from hetero_torch.arrays import DTYPES, to_array, to_tensor
from hetero_torch.table import HALVES, TOOLKIT, find_operator


class TorchNamespace:
    """The functions of an array namespace that the kernels of `table.TOOLKIT` call, on tensors of one place."""

    def __init__(self, place: torch.device) -> None:
        self._place = place

    def asarray(self, value: Any, dtype: Any = None) -> Tensor:
        """Returns an array or a number as a tensor."""
        return value if isinstance(value, Tensor) else to_tensor(np.asarray(value, dtype=dtype), self._place)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Tensor:
        """Returns zeros of a type of NumPy, or of PyTorch."""
        if isinstance(dtype, torch.dtype):
            return torch.zeros(shape, dtype=dtype, device=self._place)
        return self.asarray(np.zeros(shape, dtype))

    def concatenate(self, tensors: Any, axis: int = 0) -> Tensor:
        """Returns tensors one after another."""
        return torch.cat(tuple(tensors), axis)

    def stack(self, tensors: Any, axis: int = 0) -> Tensor:
        """Returns tensors along a new axis."""
        return torch.stack(tuple(tensors), axis)

    def transpose(self, x: Tensor, axes: tuple[int, ...]) -> Tensor:
        """Returns x with its axes in another order."""
        return x.permute(axes)

    def moveaxis(self, x: Tensor, source: int, target: int) -> Tensor:
        """Returns x with one axis moved."""
        return torch.movedim(x, source, target)


def compile_torch(
    network: Network, place: torch.device, extensions: Mapping[tuple[str, str], Extension], host_inputs: frozenset[str]
) -> Program:
    """Returns the program of a network whose nodes are all claimed; `host_inputs` are inputs that come as arrays of the host."""
    namespace = TorchNamespace(place)
    program = compile_program(
        network,
        xp=namespace,
        to_host=to_array,
        from_host=namespace.asarray,
        extensions={key: HostOperator(extension, _read, partial(to_tensor, place=place)) for key, extension in extensions.items()},
        dtypes=DTYPES,
        host_inputs=host_inputs,
    )
    return _fold_constants(_bind_program(program, namespace, place, has_halves=_has_halves(network)))


def _read(value: Any) -> Any:
    return to_array(value) if isinstance(value, Tensor) else value


def _fold_constants(program: Program) -> Program:
    """Returns the program with steps that read constants alone computed now: cast or dequantized weights are large.

    A step that fails is left to the run, whose error names its node.
    """
    values = list(program.values)
    known = {slot for slot, value in enumerate(values) if value is not None}
    steps: list[Step] = []
    with np.errstate(all="ignore"):
        for step in program.steps:
            sources = set(step.sources) - {ABSENT}
            is_constant = bool(sources) and sources <= known and step.node.since_version > 0 and not step.bodies
            if not is_constant or not _compute_constants(step, values):
                steps.append(replace(step, releases=tuple(slot for slot in step.releases if slot not in known)))
                continue
            known.update(slot for slot in step.targets if slot != ABSENT)
    read = {slot for step in steps for slot in step.sources} | set(program.output_slots)
    read |= {slot for step in steps for body in step.bodies for _, slot in body.captures}
    return replace(program, steps=tuple(steps), values=tuple(value if slot in read else None for slot, value in enumerate(values)))


def _compute_constants(step: Step, values: list[Any]) -> bool:
    try:
        results = step.function(*[values[slot] for slot in step.sources])
    except Exception:  # noqa: BLE001  # the run fails in the same way, with the node's name
        return False
    for slot, result in zip(step.targets, results if isinstance(results, tuple) else (results,), strict=False):
        if slot != ABSENT:
            values[slot] = np.asarray(result) if isinstance(result, np.generic) else result
    return True


def find_constant_memory(program: Program) -> frozenset[int]:
    """Returns the addresses of the memory of a program's constants, and of those of its bodies."""
    own = {_address(value) for value in program.values if isinstance(value, Tensor)}
    return frozenset(own.union(*(find_constant_memory(body.program) for step in program.steps for body in step.bodies)))


def copy_constants(results: tuple[Any, ...], constant_memory: frozenset[int]) -> tuple[Any, ...]:
    """Returns results of a run, with copies of those that share memory with a constant: a reader may write into its results."""
    return tuple(result.clone() if _address(result) in constant_memory else result for result in results)


def _address(tensor: Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())


def wait_for_steps(program: Program, place: torch.device) -> Program:
    """Returns a program whose steps end when the place is done with them, so that their times are right."""
    synchronize = torch.get_device_module(place).synchronize

    def wait(function: Callable[..., Any]) -> Callable[..., Any]:
        def compute(*inputs: Any, **bodies: Any) -> Any:
            results = function(*inputs, **bodies)
            synchronize()
            return results

        return compute

    return replace(program, steps=tuple(replace(step, function=wait(step.function)) for step in program.steps))


def _has_halves(network: Network) -> bool:
    return any(
        isinstance(value_type, TensorType) and value_type.dtype in HALVES
        for graph in iterate_graphs(network)
        for value_type in (*graph.types.values(), *(constant.type for constant in graph.initializers.values()))
    )


def _bind_program(program: Program, namespace: TorchNamespace, place: torch.device, *, has_halves: bool) -> Program:
    return replace(program, steps=tuple(_bind_step(step, namespace, place, has_halves=has_halves) for step in program.steps))


def _bind_step(step: Step, namespace: TorchNamespace, place: torch.device, *, has_halves: bool) -> Step:
    """Returns a step of the toolkit with PyTorch's function in place of the kernel; the bodies of If, Loop and Scan likewise."""
    bodies = tuple(
        replace(body, program=_bind_program(body.program, namespace, place, has_halves=has_halves)) for body in step.bodies
    )
    function = step.function
    if step.value or not isinstance(function, partial) or not function.args:
        return replace(step, bodies=bodies)
    own = find_operator(step.node)
    if step.node.op_type == "Size" and not step.node.domain:
        function = _count_elements
    elif function.args[0] is namespace and own is not None:
        keywords = {**function.keywords, "place": place} if own.is_placed else function.keywords
        computed = _widen(own.function) if own.widens and has_halves else own.function
        function = partial(computed, **keywords) if keywords else computed
    else:
        assert function.args[0] is np or step.node.op_type in TOOLKIT, f"{step.node.label} has no function of PyTorch"
    return replace(step, function=function, bodies=bodies)


def _count_elements(x: Any) -> Any:
    """Returns the number of elements on the host; of a tensor `size` is a method. Source: ONNX Size-25."""
    return np.asarray(x.numel() if isinstance(x, Tensor) else x.size, np.int64)


_HALVES = (torch.float16, torch.bfloat16)


def _widen(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that computes halves in float32 and rounds its results once."""

    def compute(*inputs: Any, **attributes: Any) -> Any:
        half = next((x.dtype for x in inputs if isinstance(x, Tensor) and x.dtype in _HALVES), None)
        if half is None:
            return function(*inputs, **attributes)
        wide = (x.float() if isinstance(x, Tensor) and x.dtype in _HALVES else x for x in inputs)
        results = function(*wide, **attributes)
        if isinstance(results, tuple):
            return tuple(x.to(half) if x.dtype == torch.float32 else x for x in results)
        return results.to(half) if results.dtype == torch.float32 else results

    return compute
