"""`hetero devices`: lists the installed devices, their abilities, and the reasons why some cannot be used."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hetero_core.cli.answer import Answer, UsageError, follow, format_table, to_json
from hetero_core.cli.options import Parser, read_seconds
from hetero_core.core import Core
from hetero_core.devices.known_devices import find_hardware, known_devices, known_hardware, list_unused_hardware
from hetero_core.devices.registry import DEVICES_GROUP
from hetero_core.devices.switches import PLUGINS_VARIABLE
from hetero_core.errors import MetricNotFoundError

if TYPE_CHECKING:
    from hetero_core.devices.registry import DeviceStatus

_LISTS = ("SUPPORTED_METRICS", "SUPPORTED_CONFIG_KEYS")
_FIELDS_OF_KEY = ("default", "choices", "runtime", "doc")


def add_options(parser: Parser) -> None:
    """Adds the options of the command."""
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--names", action="store_true", help="print only the names, one a line; loads no device")
    shown.add_argument("--known", action="store_true", help="print the directory of devices beside this machine; loads no device")
    shown.add_argument("--metric", metavar="NAME", help="print one metric of every device")
    text = "how long each device may take to answer (60)"
    parser.add_argument("--timeout", type=read_seconds, default=60.0, metavar="SECONDS", help=text)
    shown.add_argument("-v", "--verbose", action="store_true", help="print all metrics and configuration keys as well")


def answer(options: argparse.Namespace) -> Answer:
    """Returns the installed devices. A device that cannot be used is a row with its reason, and no error."""
    if options.known:
        return _answer_known()
    with Core(device_timeout=options.timeout) as core, follow(options)("making the devices"):
        if options.names:
            return Answer("\n".join(core.device_names), {"names": core.device_names})
        statuses = core.list_devices()
        if options.metric is not None:
            return _answer_metric(core, statuses, options.metric)
        rows = [_describe_device(core, status) for status in statuses]
    names = [status.name for status in statuses]
    plugins = core.switches.plugins
    unused = {} if plugins else list_unused_hardware(names)
    missing = {} if plugins else {name: row.requirement for name, row in known_devices().items() if name not in names}
    texts = [_format_rows(statuses)]
    if options.verbose:
        texts += [_format_details(row) for row in rows if row["reason"] is None]
    lines = [f"this machine has {hardware}, and no device for it: pip install '{name}'" for hardware, name in unused.items()]
    if missing:
        lines.append(f"not installed: {', '.join(f'{name} ({requirement})' for name, requirement in missing.items())}")
    lines += [f"{PLUGINS_VARIABLE}={plugins} leaves out all other plugins"] if plugins else []
    texts += ["\n".join(lines)] if lines else []
    return Answer("\n\n".join(texts), {"devices": rows, "not_installed": missing, "unused_hardware": unused})


def _answer_known() -> Answer:
    """Returns the directory of devices, with the installed versions and the hardware of this machine that each device announces."""
    from importlib_metadata import entry_points  # reads the installed distributions

    versions = {entry.name.strip().upper(): entry.dist.version for entry in entry_points(group=DEVICES_GROUP) if entry.dist}
    here = find_hardware()
    rows = []
    for name, row in known_devices().items():
        hardware = [known_hardware()[each].text for each in row.hardware if each in here]
        own = {"requirement": row.requirement, "installed": versions.get(name), "hardware_here": hardware}
        rows.append({**asdict(row), **own})
    header = ("DEVICE", "PIP INSTALL", "INSTALLED", "HARDWARE HERE", "RUNS ON")
    columns = ("name", "requirement", "installed", "hardware_here", "runs_on")
    cells = [[_show(row[column] or ["-"], ", ") for column in columns] for row in rows]
    return Answer(format_table(header, cells), {"known": to_json(rows)})


def _format_rows(statuses: tuple[DeviceStatus, ...]) -> str:
    if not statuses:
        return "no device is installed; install one, as in: pip install hetero-cpu"
    rows: list[tuple[str, str, str, str]] = []
    for status in statuses:
        ids = " ".join(device_id for device_id in status.ids if device_id) or "-"
        distribution = f"{status.distribution} {status.version}".strip()
        rows.append((status.name, ids, distribution, _word_reason(status.reason) or status.full_name))
        reasons = {f"{status.name}.{device_id}": _word_reason(reason) for device_id, reason in status.reason_of_id.items()}
        rows += [(name, "-", distribution, reason) for name, reason in reasons.items()]
    return format_table(("DEVICE", "IDS", "PLUGIN", "NAME"), rows)


def _word_reason(reason: str) -> str:
    return reason and f"CANNOT BE USED: {' '.join(reason.split())}"


def _describe_device(core: Core, status: DeviceStatus) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": status.name, "ids": [device_id for device_id in status.ids if device_id]}
    fields |= {"distribution": status.distribution, "version": status.version, "full_name": status.full_name or None}
    fields |= {"reason": status.reason or None, "unavailable": dict(status.reason_of_id), "metrics": {}, "config_keys": {}}
    if status.reason:
        return fields
    try:
        names = [name for name in core.get_metric(status.name, "SUPPORTED_METRICS") if name not in _LISTS]
        fields["metrics"] = {name: to_json(core.get_metric(status.name, name)) for name in names}
        fields["config_keys"] = {
            name: {"type": key.type.__name__, **{field: to_json(getattr(key, field)) for field in _FIELDS_OF_KEY}}
            for name, key in core.config_keys(status.name).items()
        }
    except Exception as error:  # noqa: BLE001  # a plugin's failure is shown in its row and hides no other
        fields["reason"] = f"{type(error).__name__}: {error}"
    return fields


def _format_details(fields: dict[str, Any]) -> str:
    metrics = [(name, _show(value)) for name, value in fields["metrics"].items()]
    keys = []
    for name, key in fields["config_keys"].items():
        kind = "|".join(map(str, key["choices"])) or key["type"]
        keys.append((name, kind if key["default"] in (None, "", []) else f"{kind} = {_show(key['default'])}", key["doc"]))
    tables = (("METRIC", "VALUE"), metrics), (("CONFIGURATION KEY", "VALUES", "MEANING"), keys)
    return "\n".join([fields["name"], *(format_table(header, rows, indent="  ") for header, rows in tables)])


def _show(value: Any, separator: str = " ") -> str:
    return separator.join(str(item) for item in value) if isinstance(value, list) else str(value)


def _answer_metric(core: Core, statuses: tuple[DeviceStatus, ...], metric: str) -> Answer:
    """Returns a metric of every device; a device with several ids has a row for each id. Raises: UsageError if no device has it."""
    rows: list[dict[str, Any]] = []
    missing: list[MetricNotFoundError] = []
    for status in statuses:
        if status.reason:
            rows.append({"name": status.name, "reason": status.reason})
            continue
        for name in [f"{status.name}.{device_id}" for device_id in status.ids] if len(status.ids) > 1 else [status.name]:
            try:
                rows.append({"name": name, "value": to_json(core.get_metric(name, metric))})
            except MetricNotFoundError as error:
                missing.append(error)
                rows.append({"name": name, "reason": f"has no metric {metric.upper()}"})
    if missing and all("reason" in row for row in rows):
        raise UsageError(f"no device has the metric: {missing[0]}")
    shown = [(row["name"], _show(row["value"]) if "value" in row else f"- ({' '.join(row['reason'].split())})") for row in rows]
    return Answer(format_table(("DEVICE", metric.upper()), shown), {"metric": metric.upper(), "devices": rows})
