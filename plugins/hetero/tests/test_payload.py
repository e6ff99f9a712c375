"""A forged plan in a blob of HETERO, behind right digests: an error, never a plan that trips later."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from hetero_core import Core, Network, Payload
from hetero_core.blobs.container import read_blob, write_blob
from hetero_core.errors import BlobError

Change = Callable[[dict[str, Any]], object]


def set_boundary(field: int, value: Any) -> Change:
    return lambda plan: plan["boundaries"][1].__setitem__(field, value)


@pytest.mark.parametrize(
    "change",
    [
        set_boundary(2, "16"),
        set_boundary(2, -1),
        set_boundary(3, 99),
        set_boundary(4, [True]),
        set_boundary(0, 7),
        lambda plan: plan.__setitem__("unexplained", None),
        lambda plan: plan.__setitem__("priorities", "CPU"),
        lambda plan: plan["device_of_node"].__setitem__("Relu_0", 3),
        lambda plan: plan["stages"][0].__setitem__(1, [1]),
        lambda plan: plan["refusals"].__setitem__("Relu_0", {"CPU": 1}),
        lambda plan: plan.pop("pins"),
    ],
)
def test_forged_plan_is_refused(core: Core, read: Callable[..., Network], change: Change) -> None:
    network = read("g (float[4] x) => (float[4] y) { a = Relu(x) y = Neg(a) }").with_affinity({"op:Neg": "TEMPLATE"})
    stream = io.BytesIO()
    core.load_network(network, "HETERO:CPU,TEMPLATE").export_network(stream)
    header, payload = read_blob(stream.getvalue())
    index = json.loads(bytes(payload.sections["index"]))
    change(index["plan"])
    forged = io.BytesIO()
    write_blob(header, Payload({**payload.sections, "index": json.dumps(index).encode()}, payload.version), forged)
    with pytest.raises(BlobError, match="index that cannot be read"):
        core.import_network(forged.getvalue(), "HETERO")
