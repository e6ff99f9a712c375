"""`hetero compile`: writes a network as a device compiled it, and shows the contents of such a file."""

from __future__ import annotations

import argparse
import dataclasses
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero_core.blobs.container import MAGIC, read_undigested
from hetero_core.cli.answer import Answer, UsageError, follow
from hetero_core.cli.options import Parser, add_device_options, add_repeated, add_shape_option, find_target, read_pinned
from hetero_core.contract import BlobCheck, DeviceName
from hetero_core.core import Core
from hetero_core.devices.switches import read_switches

if TYPE_CHECKING:
    from hetero_core.blobs.container import BlobHeader
    from hetero_core.blobs.samples import Sample
    from hetero_core.contract import Payload
    from hetero_core.runtime.executable import ExecutableNetwork


def add_options(parser: Parser) -> None:
    """Adds the options of the command."""
    parser.add_argument("model", metavar="MODEL", nargs="?", help="an .onnx file, or a name as resnet50")
    add_device_options(parser, required=False)
    add_shape_option(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="the file to write; 'hetero run FILE' runs it")
    text = """add inputs and outputs, by which 'hetero verify FILE' checks the file on another machine; missing outputs are computed; may
    be repeated: each file is a run, and states are carried from run to run"""
    add_repeated(parser, "--samples", metavar="FILE.npz", help=text)
    text = "check an exported file, print its header, and say whether it works here; loads no network"
    parser.add_argument("--inspect", metavar="FILE", help=text)


def answer(options: argparse.Namespace) -> Answer:
    """Returns the name and size of the written file, or with --inspect the contents of a file."""
    if options.inspect is not None:
        return _inspect(options)
    options.device = options.device or read_switches().device or None
    required = (("MODEL", options.model), ("-d/--device", options.device), ("-o/--output", options.output))
    missing = [name for name, value in required if value is None]
    if missing:
        raise UsageError(f"the following arguments are required: {', '.join(missing)}; see 'hetero compile --help'")
    target, step = find_target(options.output), follow(options)
    with Core() as core:
        with step(f"compiling '{options.model}' for {options.device}"):
            network, config = read_pinned(core, options)
            executable = core.load_network(network, options.device, config)
        samples = [_read_sample(executable, path) for path in options.samples]
        fields: dict[str, Any] = {"network": executable.name, "device": str(executable.device)}
        if samples:
            request = executable.create_infer_request()
            with step(f"running the samples of network '{executable.name}'"):
                for inputs, outputs in samples:  # computed outputs are copied: the next run may overwrite them
                    outputs |= deepcopy({**request.infer(inputs), **outputs})
            fields["samples"] = {"runs": len(samples)}
        executable.export_network(target, samples=samples)
        fields |= {"file": str(target), "bytes": target.stat().st_size}
    text = f"wrote '{target}': network '{fields['network']}' compiled for {fields['device']}, {fields['bytes']} bytes"
    text += f"\nsamples: {len(samples)}; 'hetero verify {target}' runs them" if samples else ""
    return Answer(text, fields)


def _read_sample(executable: ExecutableNetwork, path: str) -> Sample:
    """Returns the inputs and the outputs in a file. Raises: UsageError."""
    from hetero_core.cli.inputs import read_file, require_complete

    if Path(path).suffix.lower() != ".npz":
        raise UsageError(f"--samples {path}: expected a .npz archive, with an array for each input and perhaps for outputs")
    specs = {spec.name: spec for spec in (*executable.outputs, *executable.replaceable, *executable.inputs)}
    outputs = read_file(Path(path), "", list(specs.values()), network=executable.name, where=f"--samples {path}")
    inputs = {spec.name: outputs.pop(spec.name) for spec in (*executable.inputs, *executable.replaceable) if spec.name in outputs}
    require_complete(inputs, executable.inputs, network=executable.name, cure=f"Add an array of its name for each to {path}")
    return inputs, outputs


def _inspect(options: argparse.Namespace) -> Answer:
    excess = [option for option in ("model", "output", "config", "pin", "affinity", "shape", "samples") if getattr(options, option)]
    if excess:
        raise UsageError(f"--inspect reads one file and takes no {', '.join(excess)}")
    with Core() as core:
        check = core.check_blob(options.inspect, options.device)
    fields = _describe_blob(*read_undigested(options.inspect))  # checked by the line above
    text = "\n".join([*_format_blob(fields, ""), *_format_check(check, "")])
    return Answer(text, {"file": options.inspect, **fields, "check": dataclasses.asdict(check)})


def _format_check(check: BlobCheck, indent: str) -> list[str]:
    place = f"{check.part} on {check.device}" if check.part else f"here, on {check.device}"
    is_of_part = any(part.answer == check.answer for part in check.parts)  # which then has the reason
    reason = f": {' '.join(check.reason.split())}" if check.reason and not is_of_part else ""
    lines = [f"{indent}{place}: {check.answer}{reason}"]
    return [*lines, *(line for part in check.parts for line in _format_check(part, f"{indent}  "))]


def _describe_blob(header: BlobHeader, payload: Payload) -> dict[str, Any]:
    """Returns header and sections; a section that is a container itself is described in turn."""
    sections: list[dict[str, Any]] = []
    for name, view in payload.sections.items():
        sections.append({"name": name, "bytes": view.nbytes, "code": name in payload.code})
        if bytes(view[: len(MAGIC)]) == MAGIC:
            sections[-1]["blob"] = _describe_blob(*read_undigested(view))
    return {**{field.name: getattr(header, field.name) for field in dataclasses.fields(header)}, "sections": sections}


def _format_blob(fields: dict[str, Any], indent: str) -> list[str]:
    texts = {key: ",".join(value) if isinstance(value, list) else value for key, value in fields["config"].items()}
    config = " ".join(f"{key}={value}" for key, value in texts.items() if value not in (None, ""))
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
