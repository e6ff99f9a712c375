"""What is installed, read from folders and by importlib-metadata: the same entry points, whatever is on the path."""

from __future__ import annotations

import sys
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import importlib_metadata
import pytest

from hetero_core.devices.installed import InstalledEntryPoint, find_version, list_entry_points
from hetero_core.devices.provenance import read_identity

GROUPS = ("acme.devices", "acme.wrappers")
METADATA = "Metadata-Version: 2.1\nName: Acme.NPU\nVersion: 1.5\n\nA text.\nVersion: 9\n"
PLAIN = """
    # a comment
    [console_scripts]
    acme = acme.cli:main

    [acme.devices]
    npu = acme_npu
    # another one
    tpu=acme_npu.devices : Tpu.create
    [acme.wrappers]
    w = json:dumps
"""


def install(root: Path, folder: str, entry_points: str, *, metadata: str | None = METADATA) -> None:
    path = root / folder
    path.mkdir(parents=True)
    if metadata is not None:
        (path / "METADATA").write_text(metadata)
    (path / "entry_points.txt").write_text(textwrap.dedent(entry_points))


def describe(entry_points: list[Any]) -> list[tuple[Any, ...]]:
    return sorted((each.group, each.name, each.value, read_identity(each.dist)) for each in entry_points)


def check(*, is_plain: bool) -> list[Any]:
    """Returns the entry points, after comparing them with those of the library."""
    entry_points = list_entry_points(GROUPS)
    assert describe(entry_points) == describe([each for each in importlib_metadata.entry_points() if each.group in GROUPS])
    assert bool(entry_points)
    assert all(isinstance(each, InstalledEntryPoint) is is_plain for each in entry_points)
    return entry_points


def test_plain_folder_is_read_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "Acme_NPU-1.5.dist-info", PLAIN.replace(" : ", ":"))
    monkeypatch.syspath_prepend(str(tmp_path))
    entry_points = check(is_plain=True)
    assert [each.load() for each in entry_points if each.name == "w"] == [__import__("json").dumps]
    assert find_version("acme-npu") == find_version("Acme.NPU") == "1.5"
    with pytest.raises(ModuleNotFoundError, match="acme_npu"):
        entry_points[0].load()


def test_folder_that_is_on_the_path_twice_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "acme-1.dist-info", PLAIN.replace(" : ", ":"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    check(is_plain=True)


@pytest.mark.parametrize(
    ("folder", "entry_points", "metadata"),
    [
        ("acme-1.dist-info", PLAIN, METADATA),
        ("acme-1.dist-info", "[acme.devices]\nnpu = acme_npu [extra]\n", METADATA),
        ("acme-1.dist-info", "[acme.devices]\nnpu = acme-npu\n", METADATA),
        ("acme.egg-info", "[acme.devices]\nnpu = acme_npu\n", METADATA),
        ("acme-1.dist-info", "[acme.devices]\nnpu = acme_npu\n", "Name: acme\nversion: 3\n\n"),
    ],
    ids=["spaces", "extras", "no module", "egg", "odd metadata"],
)
def test_anything_else_is_left_to_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, entry_points: str, metadata: str
) -> None:
    install(tmp_path, folder, entry_points, metadata=metadata)
    monkeypatch.syspath_prepend(str(tmp_path))
    check(is_plain=False)


def test_name_that_is_there_twice_is_left_to_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "one", "Acme.NPU-1.dist-info", "[acme.devices]\nold = acme_npu\n")
    install(tmp_path / "two", "acme_npu-2.dist-info", "[acme.devices]\nnew = acme_npu\n")
    monkeypatch.syspath_prepend(str(tmp_path / "one"))
    monkeypatch.syspath_prepend(str(tmp_path / "two"))
    assert [each.name for each in check(is_plain=False)] == ["new"]


def test_archive_on_the_path_is_left_to_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "acme.zip", "w") as archive:
        archive.writestr("acme-1.dist-info/METADATA", METADATA)
        archive.writestr("acme-1.dist-info/entry_points.txt", "[acme.devices]\nnpu = acme_npu\n")
    monkeypatch.syspath_prepend(str(tmp_path / "acme.zip"))
    check(is_plain=False)


def test_finder_of_somebodys_own_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "acme-1.dist-info", "[acme.devices]\nnpu = acme_npu\n")

    class Finder(importlib_metadata.DistributionFinder):
        def find_distributions(self, context: Any = None) -> list[importlib_metadata.Distribution]:
            return [importlib_metadata.PathDistribution(tmp_path / "acme-1.dist-info")]

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    check(is_plain=False)


def test_version_of_what_is_not_installed_is_an_error() -> None:
    with pytest.raises(importlib_metadata.PackageNotFoundError, match="acme-absent"):
        find_version("acme-absent")
