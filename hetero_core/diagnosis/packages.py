"""Plugins and engines as they are installed: devices that cannot be used, and distributions that overwrite each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from hetero_core.diagnosis.findings import Finding

if TYPE_CHECKING:
    from hetero_core.devices.registry import DeviceStatus

SHARED_FOLDERS = ("cupy", "onnxruntime", "openvino", "torch")
"""Packages that several distributions install under one name, one for each kind of hardware."""


def check_devices(statuses: Iterable[DeviceStatus]) -> list[Finding]:
    """Returns a finding for each installed device; one that cannot be used is to be cured as its reason says."""
    findings = []
    for status in statuses:
        plugin = f"{status.distribution} {status.version}".strip()
        if status.reason:
            reason = " ".join(status.reason.split())
            cure = f"do what the reason says, or remove the plugin: pip uninstall {status.distribution}"
            findings.append(Finding("devices", f"{status.name} ({plugin}) cannot be used: {reason}", cure))
        else:
            findings.append(Finding("devices", f"{status.name} ({plugin}) works: {status.full_name}"))
    return findings if findings else [Finding("devices", "no device is installed", "install one, as in: pip install hetero-cpu")]


def check_distributions(distributions_of_folder: Mapping[str, Iterable[str]]) -> list[Finding]:
    """Returns a finding for each package of an engine that several distributions have installed over each other."""
    findings = []
    for folder in SHARED_FOLDERS:
        owners = sorted(set(distributions_of_folder.get(folder, ())))
        if len(owners) > 1:
            text = f"{' and '.join(owners)} install the folder {folder} and overwrite each other"
            cure = f"pip uninstall {' '.join(owners)}, then install one of them"
            findings.append(Finding("packages", text, cure))
    return findings


def list_distributions() -> Mapping[str, list[str]]:
    """Returns the names of the installed distributions by the packages that they install."""
    from importlib_metadata import packages_distributions  # reads the installed distributions

    return packages_distributions()
