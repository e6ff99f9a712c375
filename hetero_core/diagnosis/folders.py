"""Folders in which devices keep compiled code: where they are and what they hold, or why nothing is kept in them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hetero_core.blobs.store import open_private_folder
from hetero_core.diagnosis.findings import Finding
from hetero_core.errors import PrivateFolderError

if TYPE_CHECKING:
    from hetero_core.core import Core

CURE = "do what the reason says; until then every process compiles the code again"


def read_code_folders(core: Core) -> dict[str, str]:
    """Returns the metric CODE_FOLDER of each installed device that works and has one."""
    working = [status.name for status in core.list_devices() if not status.reason]
    names = {device: str(core.get_metric(device, "CODE_FOLDER")) for device in working}
    return {device: name for device, name in names.items() if name}


def check_code_folders(folder_of_device: Mapping[str, str]) -> list[Finding]:
    """Returns a finding for each device that keeps code; its folder is opened as the device does it, and made where there is none."""
    findings = []
    for device, name in folder_of_device.items():
        try:
            folder = open_private_folder(name)
        except PrivateFolderError as error:
            findings.append(Finding("folders", f"{device} does not keep its compiled code: {error}", CURE))
        else:
            sizes = list_sizes(folder)
            files = "1 file" if len(sizes) == 1 else f"{len(sizes)} files"
            findings.append(
                Finding("folders", f"{device} keeps its compiled code in '{folder}': {files}, {sum(sizes) / 1e6:.1f} MB")
            )
    return findings


def list_sizes(folder: Path) -> list[int]:
    """Returns the bytes of each file of a folder; one that goes meanwhile is not counted."""
    sizes = []
    for path in folder.iterdir():
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:
            continue
    return sizes
