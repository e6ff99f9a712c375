"""Device memory: tensors in it, copies from and to the host, and names that distinguish the memories of several ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hetero_core.conformance.check import CheckContext, CheckFailed, Skip, check, require, require_error
from hetero_core.conformance.samples import Sample, make_sample
from hetero_core.errors import HeteroError, InputNameError
from hetero_core.network.types import HOST
from hetero_core.runtime.inputs import DeviceTensor

if TYPE_CHECKING:
    from hetero_core.runtime.executable import ExecutableNetwork

IDS_AT_MOST = 4


def _load(context: CheckContext, device: str) -> tuple[Sample, ExecutableNetwork]:
    """Returns a loaded network. Raises: Skip if the device computes in host memory, after checking that it refuses a DeviceTensor."""
    sample = make_sample(context, "chain")
    loaded = context.core.load_network(sample.network, device)
    part = loaded
    while (inner := part.executable.find_part("x")) is not None:
        part = inner
    if all(spec.memory == HOST for spec in part.all_inputs):
        require_error(InputNameError, lambda: DeviceTensor.create(loaded, "x"), "a DeviceTensor for an input in the host's memory")
        raise Skip("inputs of the device lie in the host's memory")
    return sample, loaded


@check("contract")
def tensors_stay_in_the_memory_of_the_device(context: CheckContext) -> None:
    """A DeviceTensor is read as input and filled as output in each run, and serves as input of a second network on the device."""
    sample, loaded = _load(context, context.device)
    before, between = DeviceTensor.create(loaded, "x"), DeviceTensor.create(loaded, "y")
    request = loaded.create_infer_request()
    request.set_tensor("y", between)
    for turn in range(3):
        inputs = sample.draw(context.seed + turn)
        before.write(inputs["x"])
        outputs = request.infer({"x": before})
        require(outputs["y"] is between, "the output is not the DeviceTensor that was set for it")
        middle = between.read()
        sample.require_right({"y": middle}, inputs, f"run {turn + 1} into a DeviceTensor")
        second = {"x": middle.copy()}
        sample.require_right(loaded.infer({"x": between}), second, f"run {turn + 1}, whose input is the output of the run before")


@check("contract")
def from_host_copies(context: CheckContext) -> None:
    """`from_host` copies: later writes to the caller's array do not change the device's copy."""
    sample, loaded = _load(context, context.device)
    inputs = sample.draw(context.seed)
    tensor = DeviceTensor.create(loaded, "x", inputs["x"])
    expected = inputs["x"].copy()
    inputs["x"][...] = 0
    require(
        np.array_equal(tensor.read(), expected),
        "`from_host` gives the host's own array away in place of a copy: an array on the device changes with the caller's",
    )


@check("contract")
def to_host_copies(context: CheckContext) -> None:
    """`to_host` copies: writes to the returned array do not change the device's memory."""
    sample, loaded = _load(context, context.device)
    inputs = sample.draw(context.seed)
    tensor = DeviceTensor.create(loaded, "x", inputs["x"])
    copy = tensor.read()
    require(copy.flags.writeable, "`to_host` returns an array that cannot be written to; it belongs to the caller")
    copy[...] = 0
    require(
        np.array_equal(tensor.read(), inputs["x"]),
        "`to_host` gives the device's own memory away in place of a copy: what the caller writes to it changes the device's array",
    )


@check("contract", needs=["ids"])
def one_name_is_one_memory(context: CheckContext) -> None:
    """If the memories of two ids have the same name, each id reads the arrays of both, since no transfer is made between them."""
    loaded_of_id: dict[str, tuple[Sample, ExecutableNetwork]] = {}
    for device_id in context.facts.ids[:IDS_AT_MOST]:
        try:
            loaded_of_id[device_id] = _load(context, f"{context.facts.name}.{device_id}")
        except HeteroError:
            continue  # the id is not usable on this machine
    for maker, (sample, producer) in loaded_of_id.items():
        for reader, (_, consumer) in loaded_of_id.items():
            memory = producer.all_outputs[0].memory
            if maker == reader or memory == HOST or memory != consumer.all_inputs[0].memory:
                continue
            inputs = sample.draw(context.seed)
            tensor = DeviceTensor.create(producer, "x", inputs["x"])
            what = (
                f"the ids {maker} and {reader} both name their memory '{memory}', so that arrays go from one to the other as they are, "
                f"and {reader} cannot read those of {maker}. Name the id in it, as '{memory}:{maker}'"
            )
            try:
                outputs = consumer.infer({"x": tensor})
            except HeteroError as error:
                raise CheckFailed(f"{what}: {error}") from error
            sample.require_right(outputs, inputs, what)
