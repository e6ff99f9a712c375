"""Tensors: refused inputs, inputs that are never written to, and the owner of each array."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_core.conformance.check import CheckContext, check, require, require_equal, require_error
from hetero_core.conformance.samples import load_sample, make_samples, open_request
from hetero_core.errors import InputNameError, InputShapeError, InputTypeError

WRONG_TYPES = (np.float64, np.int64, np.bool_)


@check("contract")
def wrong_names_are_refused(context: CheckContext) -> None:
    """An unknown input, a missing input and too many positional values are errors, in every kind of run."""
    sample, loaded = load_sample(context, "chain")
    x = sample.draw(context.seed)["x"]
    for run in (loaded.infer, loaded.create_infer_request().infer, loaded.create_infer_request().start_async):
        require_error(InputNameError, run, "an input that does not exist", {"x": x, "no_such_input": x})
        require_error(InputNameError, run, "a missing input", {})
        require_error(InputNameError, run, "two values for one input", [x, x])
    request = loaded.create_infer_request()
    require_error(InputNameError, lambda: request.get_tensor("no_such_tensor"), "a tensor that does not exist")
    require_error(InputNameError, lambda: request.set_tensor("no_such_tensor", x), "a tensor that does not exist")
    require_error(InputNameError, lambda: request.get_tensor("y"), "an output before the first run")


@check("contract")
def wrong_shapes_are_refused(context: CheckContext) -> None:
    """An array of another rank or size raises InputShapeError, both for inputs and for arrays set for outputs."""
    sample, request = open_request(context, "chain")
    for shape in ((), (5,), (1, 4), (0,)):
        wrong = np.zeros(shape, sample.dtype)
        require_error(InputShapeError, request.infer, f"an input of shape {shape}", {"x": wrong})
        for name in ("x", "y"):
            require_error(InputShapeError, request.set_tensor, f"'{name}' of shape {shape}", name, wrong)


@check("contract")
def wrong_types_are_refused(context: CheckContext) -> None:
    """An array of another element type, or an object that is no array, raises InputTypeError; nothing is converted silently."""
    sample, request = open_request(context, "chain")
    wrong: list[Any] = [np.zeros(4, dtype) for dtype in WRONG_TYPES if dtype != sample.dtype]
    for value in (*wrong, [1, "two", 3, 4], "text", None, object()):
        require_error(InputTypeError, request.infer, f"an input of type {_describe(value)}", {"x": value})
        require_error(InputTypeError, request.set_tensor, f"'x' of type {_describe(value)}", "x", value)


def _describe(value: Any) -> str:
    return str(value.dtype) if isinstance(value, np.ndarray) else type(value).__name__


@check("contract")
def inputs_are_never_written(context: CheckContext) -> None:
    """The caller's input arrays are unchanged after a run, and may be read-only."""
    for form, sample in make_samples(context, "chain", "dynamic", "fork", "pair", "through").items():
        loaded = context.load(sample.network)
        inputs = sample.draw(context.seed)
        for turn in range(2):
            sample.require_right(loaded.infer(inputs), inputs, f"network '{form}', run {turn + 1}")
        for value in inputs.values():
            value.flags.writeable = False
        sample.require_right(loaded.infer(inputs), inputs, f"network '{form}' with read-only inputs")


@check("contract")
def layout_of_an_input_does_not_matter(context: CheckContext) -> None:
    """A transposed view, a slice with a step, a broadcast array and another byte order give the results of a plain array."""
    sample, loaded = load_sample(context, "dynamic")
    plain = sample.draw(context.seed, x=(6, 2))["x"]
    layouts = {
        "a transposed view": np.ascontiguousarray(plain.T).T,
        "a slice with a step": plain[::2],
        "a reversed view": plain[::-1],
        "a broadcast array": np.broadcast_to(plain[:1], (4, 2)),
        "another byte order": plain.astype(plain.dtype.newbyteorder()),
        "a Fortran array": np.asfortranarray(plain),
    }
    for what, array in layouts.items():
        expected = {"x": np.ascontiguousarray(array, dtype=sample.dtype)}
        sample.require_right(loaded.infer({"x": array}), expected, what)


@check("contract")
def outputs_have_the_declared_types(context: CheckContext) -> None:
    """Every output is a NumPy array of its element type and shape, even without dimensions or elements."""
    for form, sample in make_samples(context, "chain", "dynamic", "fork", "pair", "scalar").items():
        loaded = context.load(sample.network)
        inputs = sample.draw(context.seed)
        for name, value in loaded.infer(inputs).items():
            require(isinstance(value, np.ndarray), f"network '{form}', output '{name}' is a {type(value).__name__}")
            require_equal(value.dtype, np.dtype(sample.dtype), f"network '{form}', element type of output '{name}'")
            require_equal(value.shape, sample.expect(inputs)[name].shape, f"network '{form}', shape of output '{name}'")


@check("contract")
def results_belong_to_the_caller(context: CheckContext) -> None:
    """Outputs of `infer` of a loaded network do not change when it runs again, and are writable."""
    sample, loaded = load_sample(context, "fork")
    drawn = [sample.draw(context.seed + turn) for turn in range(4)]
    results, copies = [], []
    for inputs in drawn:
        results.append(loaded.infer(inputs))
        copies.append({name: value.copy() for name, value in results[-1].items()})
    for turn, (inputs, outputs) in enumerate(zip(drawn, results, strict=True)):
        for name, value in outputs.items():
            require(
                value.tobytes() == copies[turn][name].tobytes(),
                f"output '{name}' of run {turn + 1} changed with a later run: the device gave away memory that it goes on writing to",
            )
        sample.require_right(outputs, inputs, f"result {turn} after {len(drawn) - 1 - turn} more runs")
        for value in outputs.values():
            value += np.ones((), value.dtype)
    again = loaded.infer(drawn[0])
    sample.require_right(again, drawn[0], "a run after the results were written to")


@check("contract")
def array_set_for_an_output_is_filled(context: CheckContext) -> None:
    """An array set for an output holds the result of each run, and `get_tensor` returns this array."""
    sample, request = open_request(context, "fork")
    mine = np.zeros(4, sample.dtype)
    request.set_tensor("y", mine)
    for turn in range(3):
        inputs = sample.draw(context.seed + turn)
        outputs = request.infer(inputs)
        require(outputs["y"] is mine and request.get_tensor("y") is mine, "the output is not the array that was set for it")
        sample.require_right(outputs, inputs, f"run {turn + 1} into an array of the caller")
    request.start_async(sample.draw(context.seed))
    require(request.wait(60), "the run did not end")
    sample.require_right({"y": mine, "z": request.get_tensor("z")}, sample.draw(context.seed), "an asynchronous run into an array")
    require_error(InputNameError, lambda: request.set_tensor("y", mine[::2]), "an array for an output that is not contiguous")


@check("contract")
def tensor_that_was_set_is_given_back(context: CheckContext) -> None:
    """`get_tensor` returns the same array object that was set for an input, before and after a run."""
    sample, request = open_request(context, "chain")
    inputs = sample.draw(context.seed)
    request.set_tensor("x", inputs["x"])
    require(np.may_share_memory(request.get_tensor("x"), inputs["x"]), "the input is a copy of the array that was set")
    sample.require_right(request.infer(), inputs, "a run on what was set")
    require(np.may_share_memory(request.get_tensor("x"), inputs["x"]), "the input is a copy after a run")
    changed = sample.draw(context.seed + 1)
    inputs["x"][:] = changed["x"]
    sample.require_right(request.infer(), changed, "a run after the array that was set has changed")
