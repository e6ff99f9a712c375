"""`hetero compile`: writes a network as a device compiled it, and shows the contents of such a file."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from hetero_core.blobs.container import MAGIC, read_blob
from hetero_core.cli.answer import Answer, UsageError, follow
from hetero_core.cli.options import Parser, add_device_options, add_shape_option, find_target, read_pinned
from hetero_core.contract import DeviceName
from hetero_core.core import Core
from hetero_core.devices.switches import read_switches

if TYPE_CHECKING:
    from hetero_core.blobs.container import BlobHeader
    from hetero_core.contract import Payload


def add_options(parser: Parser) -> None:
    """Adds the options of the command."""
    parser.add_argument("model", metavar="MODEL", nargs="?", help="an .onnx file, or a name as resnet50")
    add_device_options(parser, required=False)
    add_shape_option(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="the file to write; 'hetero run FILE' runs it")
    parser.add_argument("--inspect", metavar="FILE", help="check an exported file and print its header; loads no device")


def answer(options: argparse.Namespace) -> Answer:
    """Returns the name and size of the written file, or with --inspect the contents of a file."""
    if options.inspect is not None:
        return _inspect(options)
    options.device = options.device or read_switches().device or None
    required = (("MODEL", options.model), ("-d/--device", options.device), ("-o/--output", options.output))
    missing = [name for name, value in required if value is None]
    if missing:
        raise UsageError(f"the following arguments are required: {', '.join(missing)}; see 'hetero compile --help'")
    return _compile(options)


def _compile(options: argparse.Namespace) -> Answer:

    target = find_target(options.output)
    with Core() as core, follow(options)(f"compiling '{options.model}' for {options.device}"):
        network, config = read_pinned(core, options)
        executable = core.load_network(network, options.device, config)
        executable.export_network(target)
        nbytes = target.stat().st_size
        fields = {"network": executable.name, "device": str(executable.device), "file": str(target), "bytes": nbytes}
    return Answer(f"wrote '{target}': network '{fields['network']}' compiled for {fields['device']}, {nbytes} bytes", fields)


def _inspect(options: argparse.Namespace) -> Answer:
    excess = [option for option in ("model", "device", "output", "config", "pin", "affinity", "shape") if getattr(options, option)]
    if excess:
        raise UsageError(f"--inspect reads one file and takes no {', '.join(excess)}")
    header, payload = read_blob(options.inspect)
    fields = _describe_blob(header, payload)
    return Answer("\n".join(_format_blob(fields, "")), {"file": options.inspect, **fields})


def _describe_blob(header: BlobHeader, payload: Payload) -> dict[str, Any]:
    """Returns header and sections; a section that is a container itself is described in turn."""
    sections = [_describe_section(name, view, is_code=name in payload.code) for name, view in payload.sections.items()]
    return {**{field.name: getattr(header, field.name) for field in dataclasses.fields(header)}, "sections": sections}


def _describe_section(name: str, view: Any, *, is_code: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": name, "bytes": view.nbytes, "code": is_code}
    if bytes(view[: len(MAGIC)]) == MAGIC:
        fields["blob"] = _describe_blob(*read_blob(view))
    return fields


def _format_blob(fields: dict[str, Any], indent: str) -> list[str]:
    config = " ".join(f"{key}={_show(value)}" for key, value in fields["config"].items() if value not in (None, "", []))
    rows = [
        ("device", str(DeviceName(fields["device"], fields["device_id"]))),
        *([("architecture", fields["architecture"])] if fields["architecture"] else []),
        ("plugin", f"{fields['distribution']} {fields['plugin_version']}, payload version {fields['payload_version']}"),
        ("hetero-core", fields["core_version"]),
        ("network", f"{fields['network']}, SHA-256 {fields['fingerprint'][:16]}..."),
        ("inputs", ", ".join(fields["inputs"])),
        ("outputs", ", ".join(fields["outputs"])),
        ("configuration", config or "-"),
    ]
    lines = [f"{indent}{name:13}  {value}" for name, value in rows]
    for section in fields["sections"]:
        mark = ", CODE: runs only where it is trusted" if section["code"] else ""
        lines.append(f"{indent}section        {section['name']}, {section['bytes']} bytes{mark}")
        lines += _format_blob(section["blob"], indent + "    ") if "blob" in section else []
    return lines


def _show(value: Any) -> str:
    return ",".join(value) if isinstance(value, list) else str(value)
