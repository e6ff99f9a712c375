from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from hetero_core.devices.processors import count_affinity, count_processors, describe_host_memory, find_quota


def write_files(root: Path, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def describe_v2(group: str, limits: Mapping[str, str]) -> dict[str, str]:
    return {
        "proc/self/cgroup": f"0::{group}\n",
        **{f"sys/fs/cgroup/{folder}cpu.max": text for folder, text in limits.items()},
    }


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (describe_v2("/", {"": "max 100000\n"}), None),
        (describe_v2("/", {"": "250000 100000\n"}), 2.5),
        (describe_v2("/user.slice/a.scope", {"user.slice/a.scope/": "max 100000\n", "user.slice/": "150000 100000\n"}), 1.5),
        (describe_v2("/user.slice/a.scope", {"user.slice/a.scope/": "50000 100000\n", "user.slice/": "400000 100000\n"}), 0.5),
        # A container may see its own group as the root, or the path of its group on the host.
        (describe_v2("/docker/1f", {"": "200000 100000\n"}), 2.0),
        (describe_v2("/../../outside", {"": "300000 100000\n"}), 3.0),
        (describe_v2("/docker/1f", {"": "garbage\n"}), None),
        ({}, None),
    ],
)
def test_quota_is_the_smallest_of_the_groups_around_the_process(
    texts: dict[str, str], expected: float | None, tmp_path: Path
) -> None:
    write_files(tmp_path, texts)
    assert find_quota(tmp_path) == expected


@pytest.mark.parametrize(("quota", "expected"), [(None, 4), (0.2, 1), (1.0, 1), (1.2, 2), (2.5, 3), (64.0, 4)])
def test_quota_is_rounded_up_and_limited_by_the_affinity_mask(
    quota: float | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hetero_core.devices.processors.find_quota", lambda: quota)
    monkeypatch.setattr("hetero_core.devices.processors.count_affinity", lambda: 4)
    assert count_processors() == expected


AFFINITY = """
import os
from hetero_core import Core
from hetero_core.devices.processors import count_processors

first, last = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))
before = count_processors()
os.sched_setaffinity(0, {first})
with Core() as core:
    ranges = core.get_metric("CPU", "RANGE_FOR_STREAMS"), core.get_metric("CPU", "RANGE_FOR_ASYNC_INFER_REQUESTS")
    print(before, count_processors(), core.get_config("CPU", "INFERENCE_NUM_THREADS"), *ranges)
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity masks")
def test_core_uses_only_processors_of_the_affinity_mask() -> None:
    ended = subprocess.run([sys.executable, "-c", AFFINITY], capture_output=True, text=True, check=False, timeout=900)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.split() == [str(count_processors()), "1", "1", "(1,", "1)", "(1,", "1,", "1)"]


def test_machine_without_masks_counts_its_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert count_affinity() == 1


def test_place_of_host_memory_in_0_1_warns_and_works() -> None:
    sys.modules.pop("hetero_core.devices.host_memory", None)
    with pytest.warns(DeprecationWarning, match="import describe_host_memory from hetero_core.devices.processors"):
        module = importlib.import_module("hetero_core.devices.host_memory")
    assert module.describe_host_memory is describe_host_memory
