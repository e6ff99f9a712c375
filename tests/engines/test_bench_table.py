"""`hetero bench` with engines beside CPU: one table for all devices, in real processes; how long it took is not checked."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hetero_core import Core

pytest.importorskip("openvino", reason="needs OpenVINO: pip install 'hetero-openvino[test]'")
pytest.importorskip("onnxruntime", reason="needs ONNX Runtime: pip install 'hetero-onnxruntime[cpu]'")


def test_resnet50_on_four_devices_is_one_table() -> None:
    devices = ["CPU", "ORT", "OPENVINO", "HETERO:ORT,CPU"]
    with Core() as core:
        missing = sorted({"CPU", "ORT", "OPENVINO", "HETERO"} - set(core.device_names))
    if missing:
        pytest.skip(f"needs the plugins of {', '.join(missing)}")
    arguments = [argument for device in devices for argument in ("-d", device)]
    quick = ["--iterations", "1", "--rounds", "1", "--warmup", "1"]
    ended = subprocess.run(
        [sys.executable, "-m", "hetero_core", "bench", "resnet50", *arguments, *quick],
        capture_output=True,
        text=True,
        check=True,
        timeout=900,
    )
    title, _, header, *rows = ended.stdout.splitlines()[:7]
    assert title.startswith("network 'resnet50': 1 round")
    assert header.split()[:2] == ["DEVICE", "LOAD"]
    assert [row.split()[0] for row in rows] == devices
    # The last column, the difference from CPU, is there where a device ran.
    differences = [row.split()[-1] for row in rows]
    assert differences[0] == "-"
    assert all(float(difference) < 1e-3 for difference in differences[1:])
