"""Facts that programs rely on: identity, batch limit and memory of a device are correct and do not change between reads."""

from __future__ import annotations

from hetero_core.conformance.check import CheckContext, CheckFailed, Skip, check, require, require_equal
from hetero_core.conformance.samples import make_sample
from hetero_core.devices.processors import FREE_MEMORY, TOTAL_MEMORY
from hetero_core.errors import HeteroError

LASTING = ("DEVICE_TYPE", "DEVICE_UUID", "DEVICE_ARCHITECTURE", "MAX_BATCH_SIZE", TOTAL_MEMORY)
LARGE_BATCH = 67
"""A batch that no device may refuse which names no limit; above the powers of two that engines are built for."""


@check("contract")
def facts_stay_the_same(context: CheckContext) -> None:
    """DEVICE_TYPE, DEVICE_UUID and other identifying metrics have the same values when read again, after a load, and in another Core."""
    names = [name for name in LASTING if name in context.get_metric("SUPPORTED_METRICS")]
    first = {name: context.get_metric(name) for name in names}
    context.load(make_sample(context, "chain").network)
    with context.make_core() as other:
        for name, value in first.items():
            require_equal(context.get_metric(name), value, f"{name}, read again")
            require_equal(other.get_metric(context.device, name), value, f"{name}, read in another Core")


@check("contract", needs=["ids"])
def ids_have_identifiers_of_their_own(context: CheckContext) -> None:
    """DEVICE_UUID tells physical devices apart: it is different for each id."""
    id_of_uuid: dict[str, str] = {}
    for device_id in context.facts.ids:
        uuid = context.core.get_metric(f"{context.facts.name}.{device_id}", "DEVICE_UUID")
        require(uuid not in id_of_uuid, f"the ids {id_of_uuid.get(uuid)} and {device_id} have one DEVICE_UUID, {uuid}")
        id_of_uuid[uuid] = device_id


@check("contract")
def memory_that_is_free_is_part_of_all(context: CheckContext) -> None:
    """DEVICE_FREE_MEM_SIZE is at most DEVICE_TOTAL_MEM_SIZE, which is not 0; a device has both or neither."""
    names = context.get_metric("SUPPORTED_METRICS")
    stated = [name for name in (TOTAL_MEMORY, FREE_MEMORY) if name in names]
    if not stated:
        raise Skip(f"the device does not state {TOTAL_MEMORY}")
    require_equal(stated, [TOTAL_MEMORY, FREE_MEMORY], "the metrics of memory that the device states")
    total, free = (context.get_metric(name) for name in stated)
    require(0 < total >= free, f"{FREE_MEMORY} is {free}, and {TOTAL_MEMORY} is {total}; both are in bytes")


@check("contract")
def batches_up_to_the_limit_run(context: CheckContext) -> None:
    """A run with MAX_BATCH_SIZE images is right (67 images if it is 0); with one image more it is right or raises an error."""
    sample = make_sample(context, "dynamic")
    limit = context.get_metric("MAX_BATCH_SIZE")
    loaded = context.load(sample.network)
    inputs = sample.draw(context.seed, x=(min(limit, 1024) or LARGE_BATCH, 2))
    what = f"a batch of {len(inputs['x'])}, where MAX_BATCH_SIZE is {limit}{'' if limit else ', which means no limit'}"
    try:
        sample.require_right(loaded.infer(inputs), inputs, what)
    except HeteroError as error:
        raise CheckFailed(f"{what}: {error}") from error
    if 0 < limit <= 1024:
        inputs = sample.draw(context.seed, x=(limit + 1, 2))
        try:
            outputs = loaded.infer(inputs)
        except HeteroError:
            return
        sample.require_right(outputs, inputs, f"a batch of {limit + 1} is not refused, where MAX_BATCH_SIZE is {limit}")
