"""AUTO_DEVICE_POLICY: how AUTO chooses a device, by the name of a policy or by a function of the user."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pkgutil import resolve_name
from typing import Any

from hetero_auto.startup import CUMULATIVE, MEASURE_KEY
from hetero_core import Core
from hetero_core.contract import DeviceName
from hetero_core.devices.threads import HINT_KEY
from hetero_core.errors import ConfigValueError, HeteroError, enumerate_choices, suggest
from hetero_core.network.graph import Network

DEVICE_POLICY_KEY = "AUTO_DEVICE_POLICY"
MAX_PERFORMANCE, PREFER_CPU, MIN_OVERALL_POWER = "MAX_PERFORMANCE", "PREFER_CPU", "MIN_OVERALL_POWER"
DEVICE_POLICIES = (MAX_PERFORMANCE, MIN_OVERALL_POWER, PREFER_CPU)

Choose = Callable[[Network, tuple[str, ...]], str | Sequence[str]]


def order_devices(
    core: Core, device: DeviceName, children: tuple[str, ...], network: Network, config: Mapping[str, Any]
) -> tuple[str, ...]:
    """Returns the devices in the order of the policy. Raises: ConfigValueError; errors of the user's function, as they are."""
    policy = config[DEVICE_POLICY_KEY]
    if policy is None or policy.upper() in (MAX_PERFORMANCE, MIN_OVERALL_POWER):
        return children
    if policy.upper() == PREFER_CPU:
        return tuple(sorted(children, key=lambda child: not _is_processor(core, child)))
    where = f"configuration key {DEVICE_POLICY_KEY} of device {device}: {policy}"
    chosen = _import_function(policy, device)(network, children)
    names = [chosen] if isinstance(chosen, str) else list(chosen) if isinstance(chosen, Sequence) else []
    if not names or not all(name in children for name in names):
        raise ConfigValueError(f"{where} returned {chosen!r}; expected one or several of the devices {', '.join(children)}")
    return tuple(dict.fromkeys(names))


def stays_on_first(config: Mapping[str, Any]) -> bool:
    """Says whether the first device that takes the whole network stays, so that no second device is loaded. Raises: ConfigValueError."""
    policy, measure = config[DEVICE_POLICY_KEY], config[MEASURE_KEY]
    if policy is None:
        return False
    is_measured = policy.upper() == MAX_PERFORMANCE
    rival = f"{MEASURE_KEY}={'YES' if measure else 'NO'}" if measure in (True, False) and measure != is_measured else ""
    if not is_measured and config[HINT_KEY] == CUMULATIVE:
        rival = f"{HINT_KEY}={CUMULATIVE}"
    if rival:
        way = "measures each device" if is_measured else "uses one device, unmeasured"
        raise ConfigValueError(f"{DEVICE_POLICY_KEY}={policy} {way}, and {rival} contradicts it; leave one of the keys out")
    return not is_measured


def _is_processor(core: Core, name: str) -> bool:
    try:
        return core.find_kind(name) == "processor"
    except HeteroError:
        return False  # a device that cannot be used is named when it is its turn


def _import_function(policy: str, device: DeviceName) -> Choose:
    try:
        function = resolve_name(policy) if ":" in policy else None
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigValueError(
            f"configuration key {DEVICE_POLICY_KEY} of device {device}: {policy} cannot be imported: {error}"
        ) from error
    if not callable(function):
        raise ConfigValueError(
            f"configuration key {DEVICE_POLICY_KEY} of device {device}: expected {enumerate_choices(DEVICE_POLICIES)}, or a function as "
            f"'module:function', got {policy!r}{suggest(policy.upper(), DEVICE_POLICIES)}"
        )
    return function  # type: ignore[no-any-return]  # the user's
