"""`Core.check_blob`: the three answers about blobs that another machine wrote, and their agreement with the import."""

from __future__ import annotations

import dataclasses
import io
import os
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

from hetero_core import Core
from hetero_core.blobs.container import read_blob, write_blob
from hetero_core.contract import BlobCheck, DeviceName, Payload
from hetero_core.errors import BlobDamagedError, BlobError, PluginError
from hetero_core.hookspecs import hookimpl
from hetero_core.testing.plain_device import PlainDevice

# Writes the blobs of another machine: each device with another architecture, ORT also with another engine or processor.
OTHER_MACHINE = """
import importlib.util, platform, sys
import onnx.parser
from hetero_core import Core

model = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["": 17]> g (float[64, 64] x) => (float[64, 64] y) <float[1] w = {2.0}> '
    '{ [one] a = MatMul(x, x) [two] b = Mul(a, w) [three] y = Relu(b) }'
)

def write(name, device, config=None):
    with Core() as core:
        loaded = core.load_network(model, device, config)
        loaded.export_network(f"{sys.argv[1]}/{name}.blob")

split = {"TEMPLATE_REFUSED_OPERATORS": "Relu"}
write("TEMPLATE", "TEMPLATE")
write("HETERO", "HETERO:TEMPLATE,CPU", split)
if importlib.util.find_spec("onnxruntime"):
    from hetero_core.engines import device
    write("same", "ORT")
    device.describe_machine = lambda: "another processor"
    write("processor", "ORT")
    from hetero_onnxruntime.device import OrtDevice
    OrtDevice.version = property(lambda self: "1.2.3", lambda self, version: None)
    write("engine", "ORT")
    write("parts", "HETERO:TEMPLATE,ORT", split)
platform.machine = lambda: "riscv9"
write("architecture", "CPU")
write("stage", "HETERO:TEMPLATE,CPU", split)
"""
X = np.eye(64, dtype=np.float32) * -3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The blobs of another machine."""
    path = tmp_path_factory.mktemp("blobs")
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
    subprocess.run([sys.executable, "-c", OTHER_MACHINE, str(path)], check=True, env=environment, timeout=240)
    return path


@pytest.mark.parametrize(
    ("name", "answers", "reason"),
    [
        ("TEMPLATE", ["fits"], ""),
        ("HETERO", ["fits", "fits", "fits"], ""),
        ("same", ["fits"], ""),
        ("processor", ["works after recompiling"], "the network was compiled on another machine"),
        ("engine", ["works after recompiling"], "the network was compiled by ONNX Runtime 1.2.3, and "),
        (
            "parts",
            ["works after recompiling", "fits", "works after recompiling"],
            "stage/1 on ORT: the network was compiled by ONNX Runtime 1.2.3, and ",
        ),
        ("architecture", ["does not fit"], "the blob was compiled on CPU for the architecture 'riscv9', and CPU has '"),
        ("stage", ["does not fit", "fits", "does not fit"], "stage/1 on CPU: cannot import network '"),
    ],
)
def test_blob_of_another_machine_gets_the_answer_of_its_import(
    core: Core, folder: Path, name: str, answers: list[str], reason: str
) -> None:
    path = folder / f"{name}.blob"
    if not path.exists():
        pytest.skip("the engine of this blob is not installed")
    check = core.check_blob(path, trust=True)
    assert [check.answer, *(part.answer for part in check.parts)] == answers
    assert reason in check.reason
    assert bool(check.reason) == bool(reason)
    if check.answer == "does not fit":
        with pytest.raises(BlobError):
            core.import_network(path, trust=True)
    else:
        outputs = core.import_network(path, trust=True).infer({"x": X})
        # By hand: (-3)^2 * 2 on the diagonal.
        np.testing.assert_array_equal(outputs["y"], np.eye(64, dtype=np.float32) * 18)


def test_code_that_is_not_trusted_is_compiled_again(core: Core, folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    check = core.check_blob(folder / "same.blob")
    assert (check.device, check.answer) == ("ORT", "works after recompiling")
    assert check.reason.startswith("the blob holds what compiling made, which is code and not trusted; import it with trust=True")


def rewrite(path: Path, **changes: Any) -> bytes:
    """Returns the blob with other fields in its header."""
    header, payload = read_blob(path)
    stream = io.BytesIO()
    write_blob(dataclasses.replace(header, **changes), payload, stream)
    return stream.getvalue()


def test_reason_names_what_is_missing_with_the_cure(core: Core, folder: Path) -> None:
    path = folder / "TEMPLATE.blob"
    newer = path.read_bytes()[:8] + struct.pack("<I", 4) + path.read_bytes()[12:]
    reasons = {
        "has container format 4; this hetero-core reads format 3": (newer, None),
        "the blob's device is TEMPLATE, here it is CPU": (path, "CPU"),
        "device TEMPLATE has no id '7'": (path, "TEMPLATE.7"),
        "no plugin announces device 'NOSUCH'": (path, "NOSUCH"),
        "the blob's payload has version 99": (rewrite(path, payload_version=99), None),
    }
    for reason, (source, device) in reasons.items():
        check = core.check_blob(source, device)
        assert check.answer == "does not fit", reason
        assert reason in check.reason


def test_missing_device_of_a_part_is_listed(core: Core, folder: Path) -> None:
    plain = (folder / "HETERO.blob").read_bytes()
    with Core() as other:
        other.unregister_plugin("CPU")
        check = other.check_blob(plain)
    assert check.reason.startswith("no plugin announces device 'CPU'; install it with 'pip install hetero-cpu'")
    assert [(part.part, part.device, part.answer) for part in check.parts] == [
        ("stage/0", "TEMPLATE", "fits"),
        ("stage/1", "CPU", "does not fit"),
    ]


def test_damaged_blob_is_an_error_of_the_check(core: Core, folder: Path) -> None:
    content = (folder / "HETERO.blob").read_bytes()
    middle = len(content) // 2
    for damaged in (b"", content[:-1], content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]):
        with pytest.raises(BlobDamagedError):
            core.check_blob(damaged)
    with pytest.raises(BlobDamagedError, match="cannot read the blob 'missing.blob': No such file"):
        core.check_blob("missing.blob")


class Answering(PlainDevice):
    """A device that answers with `answer`."""

    answer: Any = None

    @hookimpl
    def check_payload(self, device: DeviceName, payload: Payload, config: Mapping[str, Any]) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_answer_of_a_plugin_is_checked(core: Core, folder: Path) -> None:
    plugin = Answering()
    core.register_plugin("ANSWERING", plugin)
    model = "g (float[2] x) => (float[2] y) { y = Relu(x) }"
    stream = io.BytesIO()
    core.load_network(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {model}'), "ANSWERING").export_network(
        stream
    )
    plugin.answer = "yes"
    with pytest.raises(PluginError, match="returned str from check_payload; expected a BlobCheck"):
        core.check_blob(stream.getvalue())
    plugin.answer = KeyError("index")
    assert core.check_blob(stream.getvalue()).answer == "does not fit"
    plugin.answer = BlobCheck("ANSWERING")
    assert core.check_blob(stream.getvalue()) == BlobCheck("ANSWERING")


@pytest.mark.parametrize("device", ["MULTI:TEMPLATE,CPU", "AUTO:CPU", "BATCH:TEMPLATE", "PROCESS:TEMPLATE"])
def test_other_composers_list_their_parts(core: Core, device: str) -> None:
    stream = io.BytesIO()
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[1, 2] x) => (float[1, 2] y) { y = Relu(x) }')
    core.load_network(model, device).export_network(stream)
    check = core.check_blob(stream.getvalue())
    assert check.answer == "fits"
    # PROCESS has the answer of its host.
    assert [part.device for part in check.parts] == ([] if "PROCESS" in device else device.partition(":")[2].split(","))
