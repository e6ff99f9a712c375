"""`hetero doctor`: checks the installed packages and the folders of the devices, and names the cure of each fault."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hetero_core.blobs.store import open_private_folder
from hetero_core.cli.answer import OK, WRONG_RESULT, Answer, follow
from hetero_core.cli.options import Parser
from hetero_core.core import Core
from hetero_core.devices.registry import DeviceStatus
from hetero_core.devices.switches import PLUGINS_VARIABLE
from hetero_core.errors import PrivateFolderError

SHARED_FOLDERS = ("cupy", "onnxruntime", "openvino", "torch")
"""Packages that several distributions, each for a kind of hardware, install under the same name."""
FOLDER_CURE = "do what the reason says; until then every process compiles the code again"


@dataclass(frozen=True, slots=True)
class Finding:
    """A statement about one topic of the installation. `cure` says what to do; it is empty if nothing needs to be done."""

    topic: str
    text: str
    cure: str = ""


def add_options(parser: Parser) -> None:
    """Adds the options of the command."""


def answer(options: argparse.Namespace) -> Answer:
    """Returns all findings; the exit code is 1 if a finding needs a cure."""
    from importlib_metadata import packages_distributions  # reads the installed distributions

    with Core() as core, follow(options)("making the devices"):
        statuses = core.list_devices()
        findings = [Finding("environment", f"{name}: {text}") for name, text in core.switches.describe().items()]
        findings += check_devices(statuses)
        findings += check_distributions(packages_distributions())
        names = {status.name: str(core.get_metric(status.name, "CODE_FOLDER")) for status in statuses if not status.reason}
        findings += check_code_folders({device: name for device, name in names.items() if name})
    lines: list[str] = []
    for topic in dict.fromkeys(finding.topic for finding in findings):
        lines.append(topic)
        for finding in findings:
            if finding.topic == topic:
                lines.append(f"  {'!' if finding.cure else '-'} {finding.text}")
                lines += [f"    cure: {finding.cure}"] if finding.cure else []
    count = sum(bool(finding.cure) for finding in findings)
    lines.append("nothing needs a cure" if count == 0 else f"{count} of {len(findings)} findings need a cure")
    rows = [{"topic": finding.topic, "text": finding.text, "cure": finding.cure or None} for finding in findings]
    return Answer("\n".join(lines), {"findings": rows, "cures": count}, WRONG_RESULT if count else OK)


def check_devices(statuses: Iterable[DeviceStatus]) -> list[Finding]:
    """Returns a finding for each installed device; the cure of an unusable device follows its reason."""
    findings = []
    for status in statuses:
        plugin = f"{status.distribution} {status.version}".strip()
        if status.reason:
            reason = " ".join(status.reason.split())
            cure = (
                f"do what the reason says, or remove the plugin: pip uninstall {status.distribution}, or leave it out: "
                f"{PLUGINS_VARIABLE}=-{status.name}"
            )
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


def check_code_folders(folder_of_device: Mapping[str, str]) -> list[Finding]:
    """Returns a finding for each device that keeps compiled code; its folder is opened, and made if it is missing, as the device does."""
    findings = []
    for device, name in folder_of_device.items():
        try:
            findings.append(Finding("folders", f"{device} keeps its compiled code in '{open_private_folder(name)}'"))
        except PrivateFolderError as error:
            findings.append(Finding("folders", f"{device} does not keep its compiled code: {error}", FOLDER_CURE))
    return findings
