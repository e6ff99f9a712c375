"""`hetero fit`: cuts a model by the memory that its devices have free, and prints the options that load it so; nothing is loaded."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
from typing import Any

from hetero_core.cli.answer import Answer, UsageError, follow
from hetero_core.cli.options import Parser, add_repeated, add_shape_option, read_config, read_model, read_shapes
from hetero_core.core import Core
from hetero_core.devices.names import parse_device_name
from hetero_core.errors import DeviceMemoryError
from hetero_core.network.graph import Network
from hetero_core.plan import Plan
from hetero_core.reports.fields import record_to_json
from hetero_core.reports.text import describe_memory

_MEMORY, _SIZES = "HETERO_MEMORY", "HETERO_MEMORY_SIZES"
_FREE = "DEVICE_FREE_MEM_SIZE"


def add_options(parser: Parser) -> None:
    """Adds the options of the command."""
    parser.add_argument("model", metavar="MODEL", help="an .onnx file, or a name as resnet50")
    text = "the devices in the order of the parts, as GPU,CPU"
    parser.add_argument("-d", "--device", required=True, metavar="DEVICES", help=text)
    add_repeated(parser, "-c", "--config", metavar="KEY=VALUE", help="a configuration key of HETERO; may be repeated")
    add_shape_option(parser, "the largest input")


def answer(options: argparse.Namespace) -> Answer:
    """Returns the memory of each part and the options. Raises: DeviceMemoryError with the figures if the model does not fit."""
    from hetero_core.cli.inputs import choose_sizes  # imports NumPy, which parsing does not need

    device = options.device if ":" in options.device else f"HETERO:{options.device}"
    with Core() as core:
        network = read_model(core, options.model)
        sizes = choose_sizes(read_shapes(options.shape, network.inputs), network.inputs)
        own = read_config(options)
        for name in own:
            if name.upper() in (_MEMORY, _SIZES):
                raise UsageError(f"-c {name}: fit finds the limits itself, and takes the largest sizes from --shape; leave it out")
        config: dict[str, Any] = {**own, _MEMORY: "AUTO", **({_SIZES: sizes} if sizes else {})}
        with follow(options)(f"asking {device} about '{options.model}'"):
            plan = core.query_network(network, device, config).plan
            assert plan is not None, "placement by memory leaves no node without a device"
            used = [held.device for held in plan.memory]
            by_priority = core.query_network(network, device, own).plan if len(used) < len(plan.priorities) else None
            idle = {name: _explain_idle(plan, by_priority, name) for name in plan.priorities if name not in used}
        # Keys of the user may name any device of the list.
        listed = plan.priorities if own else used
        device = f"{device.partition(':')[0]}:{','.join(listed)}" if len(listed) > 1 else listed[0]
        config = {**config, _MEMORY: _fix_limits(core, network, device, config, plan)} if len(listed) > 1 else {}
        known = {name: _FREE in core.get_metric(name, "SUPPORTED_METRICS") for name in plan.priorities}
        free = {name: core.get_metric(name, _FREE) if known[name] else None for name in plan.priorities}
    memory = [{**record_to_json(held), "total": held.total} for held in plan.memory]
    fields = {"network": network.name, "device": device, "config": config, "free": free, "idle": idle, "memory": memory}
    fields["plan_devices"] = dict(plan.device_of_node)
    return Answer(_describe(plan, free, idle, options, device, config), fields)


def _fix_limits(core: Core, network: Network, device: str, config: dict[str, Any], plan: Plan) -> dict[str, int] | str:
    """Returns the bytes that each device may hold for the same parts, whatever is free later; AUTO if bytes cannot tell them.

    Limits in bytes leave the workspace of engines out of the estimate, so a part may only stay as it is without this room.
    """
    listed = parse_device_name(device).arguments.split(",")
    for has_workspace in (True, False):
        limits: dict[str, int] = {name: 0 for name in listed if name not in [held.device for held in plan.memory]}
        for held in plan.memory:
            if held.limit is not None:
                limits[held.device] = held.limit - (0 if has_workspace else held.workspace)
        with contextlib.suppress(DeviceMemoryError):
            same = core.query_network(network, device, {**config, _MEMORY: limits}).plan
            if same is not None and same.device_of_node == plan.device_of_node:
                return limits
    return "AUTO"


def _explain_idle(plan: Plan, by_priority: Plan | None, device: str) -> str:
    """Returns why a device of the list has no part; `by_priority` is the plan without regard to memory, if every node has a device."""
    refusals = {} if by_priority is None else by_priority.refusals
    reasons = {name: reasons[device] for name, reasons in refusals.items() if device in reasons}
    if by_priority is not None and reasons and device not in by_priority.device_of_node.values():
        name, reason = next(iter(reasons.items()))
        return f"it refuses the nodes that are left to it, as '{name}': {reason}"
    place = plan.priorities.index(device)
    busy = [plan.priorities.index(held.device) for held in plan.memory]
    return "the devices before it hold all nodes" if max(busy) < place else "it has too little memory for the next node"


def _describe(
    plan: Plan, free: dict[str, int | None], idle: dict[str, str], options: argparse.Namespace, device: str, config: dict[str, Any]
) -> str:
    spare = (f"{name} {'not stated' if nbytes is None else f'{nbytes:,} bytes'}" for name, nbytes in free.items())
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in config.items() if name != _SIZES}
    keys = [f"-c {shlex.quote(f'{name}={text}')}" for name, text in texts.items()]
    # The command takes the model for these shapes, so that no size is open.
    shapes = [f"--shape {shlex.quote(shape)}" for shape in options.shape]
    model = options.model
    arguments = ", ".join([json.dumps(model), json.dumps(device), *([json.dumps(config)] if config else [])])
    lines = [f"network '{plan.network}' fits; estimated:", *(f"  {line}" for line in describe_memory(plan))]
    lines += [f"free: {', '.join(spare)}", *(f"{name} has no part: {reason}" for name, reason in idle.items()), ""]
    lines.append("To load these parts" + (f"; {_MEMORY}=AUTO cuts anew by the memory that is free then:" if config else ":"))
    lines.append(f"  hetero run {shlex.quote(model)} --random {' '.join(['-d', device, *keys, *shapes])}")
    return "\n".join([*lines, f"  loaded = core.load_network({arguments})"])
