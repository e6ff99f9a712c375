"""CPU_THREADS_PER_STREAM: the old way to say how many threads each stream has, brought to INFERENCE_NUM_THREADS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hetero_core.devices.threads import HINT_KEY, STREAMS_KEY, THREADS_KEY, THROUGHPUT
from hetero_core.errors import ConfigValueError

OLD_KEY = "CPU_THREADS_PER_STREAM"


def multiply_streams(config: Mapping[str, Any], *, device: str, where: str = "") -> Mapping[str, Any]:
    """Returns the values with INFERENCE_NUM_THREADS in place of CPU_THREADS_PER_STREAM: that many times the streams of the same call.

    `where` is what messages name in place of the device: "network 'net' on CPU".

    Raises: ConfigValueError where one of the two is no number of 1 or more, or the number of streams follows from the threads.
    """
    own = f"{device.partition(':')[0].partition('.')[0]}_THROUGHPUT_STREAMS"
    owner = where or f"device {device}"
    names = (STREAMS_KEY, "CPU_THROUGHPUT_STREAMS", own)
    folded = {name.strip().upper(): value for name, value in config.items() if isinstance(name, str)}
    if OLD_KEY not in folded:
        return config
    streams = next((folded[name] for name in names if name in folded), 1)
    threads = _read_count(folded[OLD_KEY])
    is_throughput = str(folded.get(HINT_KEY, "")).strip().upper() == THROUGHPUT and not any(name in folded for name in names)
    if threads is None or _read_count(streams) is None or is_throughput:
        raise ConfigValueError(
            f"configuration key {OLD_KEY} of {owner}: expected an int of 1 or more, and {STREAMS_KEY} as one beside it, got "
            f"{folded[OLD_KEY]!r} and {'the hint THROUGHPUT' if is_throughput else repr(streams)}; {THREADS_KEY} says how many threads all "
            "streams have together"
        )
    others = {name: value for name, value in config.items() if not isinstance(name, str) or name.strip().upper() != OLD_KEY}
    total = threads * (_read_count(streams) or 1)
    if others.get(THREADS_KEY, total) != total:
        raise ConfigValueError(f"configuration key {THREADS_KEY} of {owner} is given twice: {others[THREADS_KEY]!r} and {total}")
    return {**others, THREADS_KEY: total}


def read_value(name: str, known: str, config: Mapping[str, Any]) -> Any:
    """Returns the value of a key of a complete configuration; `name` is what it was asked for by, `known` its declared name."""
    if known == THREADS_KEY and name.strip().upper() == OLD_KEY:
        return config[THREADS_KEY] // config[STREAMS_KEY]
    return config[known]


def _read_count(value: Any) -> int | None:
    """Returns an int of 1 or more, which may be a text; None for anything else."""
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
