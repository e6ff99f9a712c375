"""`hetero doctor`: finds faults in real processes, and prints the cure of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hetero_core.cli.doctor import (
    FOLDER_CURE,
    Finding,
    check_blas,
    check_code_folders,
    check_gpu,
    check_libraries,
    check_threads,
    find_cuda_fault,
    read_driver,
    read_libraries,
)
from hetero_core.cli.main import main
from hetero_core.devices.processors import read_processor_flags

RIVALS = [
    ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino"),
    ("openvino", "openvino-dev", "openvino-nightly"),
]
"""Packages, each with two distributions that install it."""


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The findings in an environment with a broken plugin, with rival distributions of two packages, and with too many threads."""
    site = tmp_path_factory.mktemp("site")
    plant_distribution(site, "hetero-broken", "entry_points.txt", "[hetero_core.devices]\nBROKEN = hetero_broken\n")
    (site / "hetero_broken.py").write_text("raise ImportError('libbroken.so: cannot open shared object file')")
    for package, *rivals in RIVALS:
        (site / package).mkdir()
        (site / package / "__init__.py").write_text("")
        for name in rivals:
            # The wheels list their files but no packages.
            plant_distribution(site, name, "RECORD", f"{package}/__init__.py,,\n")
    paths = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        [sys.executable, "-m", "hetero_core", "doctor", "--json"],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "100000"},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert ended.returncode == 1, ended.stderr
    rows: list[dict[str, Any]] = json.loads(ended.stdout)["findings"]
    return rows


def plant_distribution(folder: Path, name: str, file: str, text: str) -> None:
    """Writes the metadata of an installed distribution: its name, its version, and another file."""
    metadata = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / file).write_text(text)


def test_plugin_that_fails_is_found_with_its_reason(findings: list[dict[str, Any]]) -> None:
    (finding,) = [each for each in findings if each["text"].startswith("BROKEN")]
    assert "libbroken.so: cannot open shared object file" in finding["text"]
    assert finding["cure"] == (
        "do what the reason says, or remove the plugin: pip uninstall hetero-broken, or leave it out: HETERO_PLUGINS=-BROKEN"
    )


def test_switches_are_shown_with_value_and_origin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HETERO_DEVICE", "CPU")
    monkeypatch.setenv("HETERO_PLUGINS", "CPU")
    main(["doctor"])
    text = capsys.readouterr().out
    assert "environment\n  - HETERO_DEVICE: CPU, from the environment\n" in text
    assert "  - HETERO_CACHE_DIR: not set, default: no cache\n" in text


@pytest.mark.parametrize(("package", "first", "second"), RIVALS, ids=[package for package, _, _ in RIVALS])
def test_distributions_that_own_the_same_files_are_found(
    findings: list[dict[str, Any]], package: str, first: str, second: str
) -> None:
    (finding,) = [each for each in findings if each["topic"] == "packages" and f"the folder {package} " in each["text"]]
    owners = finding["text"].partition(" install the folder")[0].split(" and ")
    # A third distribution may really be installed in this environment.
    assert {first, second} <= set(owners) <= {first, second, package}
    assert finding["cure"] == f"pip uninstall {' '.join(owners)}, then install one of them"


def test_more_threads_than_processors_are_found(findings: list[dict[str, Any]]) -> None:
    (finding,) = [each for each in findings if "OMP_NUM_THREADS=" in each["text"]]
    assert finding["topic"] == "threads"
    assert finding["text"] == "OMP_NUM_THREADS=100000 is more than there are processors"


def test_libraries_of_the_process_are_listed(tmp_path: Path) -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("the system does not list the libraries of a process")
    import numpy  # noqa: F401  # its BLAS is what is looked for

    assert any("libc.so" in path or "libc-" in path for path in read_libraries())
    assert read_libraries(tmp_path / "nothing") == ()


@pytest.mark.parametrize(
    ("paths", "cures"),
    [
        (["/a/libgomp-1a.so.1", "/b/libgomp.so.1"], 0),
        (["/a/libgomp.so.1", "/b/libiomp5.so"], 1),
        (["/a/libomp.so.5", "/b/libtbb.so.12"], 0),
    ],
)
def test_openmp_runtimes_conflict_only_between_vendors(paths: list[str], cures: int) -> None:
    findings = list(check_libraries(paths))
    assert sum(bool(finding.cure) for finding in findings) == cures
    if cures:
        assert findings[-1].text.startswith("OpenMP of GNU and OpenMP of Intel are loaded")


@pytest.mark.parametrize(
    ("kernels", "flags", "environment", "cure"),
    [
        (
            "Haswell",
            ["avx512f"],
            {"OPENBLAS_CORETYPE": "Haswell"},
            "unset OPENBLAS_CORETYPE, which is Haswell; the processor has AVX-512",
        ),
        ("Haswell", ["avx2"], {"OPENBLAS_CORETYPE": "Haswell"}, ""),
        ("SkylakeX", ["avx512f"], {}, ""),
    ],
)
def test_setting_that_limits_the_kernels_of_blas_is_found(
    kernels: str, flags: list[str], environment: dict[str, str], cure: str
) -> None:
    blas = {"internal_api": "openblas", "version": "0.3.30", "architecture": kernels, "num_threads": 2}
    (finding,) = check_blas([blas], flags, environment)
    assert finding == Finding("libraries", f"openblas 0.3.30 computes with the kernels of {kernels}, 2 threads", cure)


def test_quota_below_the_mask_without_a_limit_for_blas_is_found() -> None:
    findings = list(check_threads({}, affinity=64, processors=2))
    assert [finding.text for finding in findings] == [
        "2 processors to use, of 64 in the mask: a quota holds the rest back",
        "BLAS counts the mask and makes 64 threads for 2 processors",
    ]
    assert findings[1].cure == "set OPENBLAS_NUM_THREADS=2 and OMP_NUM_THREADS=2"
    assert not any(finding.cure for finding in check_threads({"OMP_NUM_THREADS": "2"}, affinity=64, processors=2))
    assert [*check_threads({"OMP_NUM_THREADS": "all"}, affinity=2, processors=2)][
        1
    ].cure == "set OMP_NUM_THREADS to 1 to 2, or unset it"


@pytest.mark.parametrize(
    ("driver", "fault", "text", "has_cure"),
    [
        (None, "no file", "no NVIDIA driver", False),
        (None, None, "libcuda can be loaded, and the kernel has no NVIDIA driver", True),
        ("NVRM 570", "no file", "NVRM 570, but libcuda cannot be loaded: no file", True),
        ("NVRM 570", None, "NVRM 570", False),
    ],
)
def test_driver_and_its_library_belong_together(driver: str | None, fault: str | None, text: str, has_cure: bool) -> None:
    finding = check_gpu(driver, fault)
    assert (finding.text, bool(finding.cure)) == (text, has_cure)


def test_driver_and_processor_flags_are_read_from_files(tmp_path: Path) -> None:
    (tmp_path / "version").write_text("NVRM version: 570.1\nGCC version: 12\n")
    (tmp_path / "cpuinfo").write_text("processor : 0\nflags : sse2 avx512f\nflags : none\n")
    assert read_driver(tmp_path / "version") == "NVRM version: 570.1"
    assert read_driver(tmp_path / "nothing") is None
    assert read_processor_flags(tmp_path / "cpuinfo") == ("sse2", "avx512f")
    assert "libnothing.so.1" in str(find_cuda_fault("libnothing.so.1"))


def test_folder_of_compiled_code_is_made_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "hetero" / "some-kernels"
    text = f"ONE keeps its compiled code in '{folder}'"
    assert list(check_code_folders({"ONE": "some-kernels"})) == [Finding("folders", f"{text}: 0 files, 0.0 MB")]
    for name in ("a.o", "b.o"):
        (folder / name).write_bytes(bytes(150_000))
    assert list(check_code_folders({"ONE": "some-kernels"})) == [Finding("folders", f"{text}: 2 files, 0.3 MB")]
    assert not list(check_code_folders({}))


@pytest.mark.skipif(sys.platform == "win32", reason="links are made by nobody but an administrator")
def test_unusable_folder_of_compiled_code_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "hetero").mkdir(mode=0o700)
    (tmp_path / "hetero" / "some-kernels").symlink_to(tmp_path)
    reason = f"cannot keep code in '{tmp_path / 'hetero' / 'some-kernels'}': it is a link; expected a folder of your own. Remove it"
    (finding,) = check_code_folders({"ONE": "some-kernels"})
    assert finding == Finding("folders", f"ONE does not keep its compiled code: {reason}", FOLDER_CURE)
