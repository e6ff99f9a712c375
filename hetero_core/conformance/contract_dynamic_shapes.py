"""Dynamic shapes: one loaded network serves every size of a symbolic dimension."""

from __future__ import annotations

import numpy as np

from hetero_core.conformance.check import CheckContext, Skip, check, require_equal, require_error
from hetero_core.conformance.refusals import load_claimed
from hetero_core.conformance.samples import load_sample, open_request, read_text
from hetero_core.errors import InferenceError, InputShapeError


@check("contract")
def sizes_may_change_between_runs(context: CheckContext) -> None:
    """After larger, smaller, single-row and empty inputs, the outputs of each run have the shape of its own input."""
    sample, loaded = load_sample(context, "dynamic")
    request = loaded.create_infer_request()
    for turn, size in enumerate((3, 8, 1, 0, 5, 3)):
        inputs = sample.draw(context.seed + turn, x=(size, 2))
        sample.require_right(request.infer(inputs), inputs, f"size {size}, request")
        require_equal(request.get_tensor("y").shape, (size, 2), "the shape of the output after the run")
        sample.require_right(loaded.infer(inputs), inputs, f"size {size}, network")


@check("contract")
def two_requests_may_have_two_sizes(context: CheckContext) -> None:
    """Requests of different sizes in flight at once have their own results."""
    sample, loaded = load_sample(context, "dynamic")
    sizes = (2, 7, 1, 4)
    requests = [loaded.create_infer_request() for _ in sizes]
    drawn = [sample.draw(context.seed + index, x=(size, 2)) for index, size in enumerate(sizes)]
    for request, inputs in zip(requests, drawn, strict=True):
        request.start_async(inputs)
    for request, inputs in zip(requests, drawn, strict=True):
        sample.require_ended(request, inputs, f"size {inputs['x'].shape[0]}")


@check("contract")
def fixed_dimension_stays_fixed(context: CheckContext) -> None:
    """The dimension of a known size, and the rank, are checked while the symbolic one is free."""
    sample, request = open_request(context, "dynamic")
    for shape in ((3, 3), (3,), (3, 2, 1)):
        wrong = np.zeros(shape, sample.dtype)
        require_error(InputShapeError, request.infer, f"an input of shape {shape}", {"x": wrong})


@check("contract")
def array_of_another_size_for_an_output_is_refused(context: CheckContext) -> None:
    """A run fails if the array set for an output is too small or too large; the request works again once the array is removed."""
    sample, loaded = load_sample(context, "dynamic")
    inputs = sample.draw(context.seed)
    for size in (2, 4):
        request = loaded.create_infer_request()
        request.set_tensor("y", np.zeros((size, 2), sample.dtype))
        require_error(InferenceError, request.infer, f"an array of {size} rows for a result of 3", inputs)
        request.set_tensor("y", np.zeros((3, 2), sample.dtype))
        sample.require_right(request.infer(inputs), inputs, "with an array of the right size")


@check("contract")
def broadcasting_is_decided_in_each_run(context: CheckContext) -> None:
    """Two open sizes are equal in one run and 1 and 4 in the next: the broadcast of an input is decided anew in each run."""
    for operator, compute in (("Add", np.add), ("Sub", np.subtract), ("Mul", np.multiply)):
        network = read_text(context, f"(float[N,2] a, float[M,2] b) => (float[K,2] y) {{ y = {operator} (a, b) }}", name=operator)
        if context.query(network).refused:
            continue
        with load_claimed(context.core, network, context.device) as loaded:
            for rows, others in ((4, 4), (4, 1), (1, 4), (3, 3), (1, 1), (0, 1)):
                a, b = (np.arange(2 * count, dtype=np.float32).reshape(count, 2) + 1 for count in (rows, others))
                value = loaded.infer({"a": a.copy(), "b": b.copy()})["y"]
                what = f"{operator} of {rows} rows and {others}, in one network of open sizes"
                require_equal(value.tolist(), compute(a, b).tolist(), what)
        return
    raise Skip("the device takes none of Add, Sub, Mul of two open sizes")
