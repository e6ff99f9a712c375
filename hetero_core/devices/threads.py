"""Division of the processors of a process: from the configuration of a load to its streams, and the threads of each.

A stream is a run of a loaded network; NUM_STREAMS is how many the Core's threads may have under way at the same time.
INFERENCE_NUM_THREADS is the budget of the whole network; every stream gets the same part of it. CPU_THREADS_PER_STREAM, an old key,
is translated to it. Pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hetero_core.contract import freeze_mapping
from hetero_core.errors import ConfigValueError

THREADS_KEY = "INFERENCE_NUM_THREADS"
STREAMS_KEY = "NUM_STREAMS"
HINT_KEY = "PERFORMANCE_HINT"
REQUESTS_KEY = "PERFORMANCE_HINT_NUM_REQUESTS"
EXCLUSIVE_KEY = "EXCLUSIVE_ASYNC_REQUESTS"
PRIORITY_KEY = "MODEL_PRIORITY"
THREAD_KEYS = (EXCLUSIVE_KEY, THREADS_KEY, STREAMS_KEY, HINT_KEY, REQUESTS_KEY, PRIORITY_KEY)
"""Keys that steer the use of a machine and not the compilation: no blob keeps them, no cached network depends on them."""

AUTO = "AUTO"
THROUGHPUT = "THROUGHPUT"


def resolve_threads(
    config: Mapping[str, Any], *, device: str, processors: int, find_range: Callable[[], tuple[int, int]]
) -> Mapping[str, Any]:
    """Returns the configuration with numbers for INFERENCE_NUM_THREADS and NUM_STREAMS, by the hint if they are not set.

    `find_range` returns the lowest and the highest number of streams that the device has; it is called only if the range is needed.

    Raises: ConfigValueError for more threads than processors, more streams than the device has or than there are threads, and more
    than the single stream that all exclusive networks share.
    """
    given_threads, given_streams = config[THREADS_KEY], config[STREAMS_KEY]
    if given_threads is not None and given_threads > processors:
        raise ConfigValueError(
            f"configuration key {THREADS_KEY} of device {device}: expected an int of 1 to {processors}, the processors that this "
            f"process may use, got {given_threads}; leave it out to use all of them"
        )
    threads = processors if given_threads is None else given_threads
    if isinstance(given_streams, int):
        streams = given_streams
        if config[EXCLUSIVE_KEY] and streams > 1:
            raise ConfigValueError(
                f"{STREAMS_KEY}={streams} and {EXCLUSIVE_KEY}=True of device {device} contradict each other: exclusive networks share "
                "one stream; give one of the two keys"
            )
        lowest, highest = find_range()
        if not lowest <= streams <= highest:
            raise ConfigValueError(
                f"configuration key {STREAMS_KEY} of device {device}: expected an int of {lowest} to {highest} or {AUTO}, got {streams}"
            )
        if given_threads is not None and streams > given_threads:
            raise ConfigValueError(
                f"{STREAMS_KEY}={streams} of device {device} are more streams than {THREADS_KEY}={given_threads} has threads for; "
                "each stream needs one"
            )
    elif config[EXCLUSIVE_KEY] or (given_streams is None and config[HINT_KEY] != THROUGHPUT):
        streams = 1
    else:
        lowest, highest = find_range()
        # More streams than requests would leave processors idle.
        requests = config[REQUESTS_KEY] or threads
        streams = max(lowest, min(threads, highest, requests))
    return freeze_mapping({**config, THREADS_KEY: threads, STREAMS_KEY: streams})


def share_threads(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the configuration as hooks see it: INFERENCE_NUM_THREADS is the number for each run."""
    return freeze_mapping({**config, THREADS_KEY: max(1, config[THREADS_KEY] // config[STREAMS_KEY])})


def unshare_threads(config: Mapping[str, Any], processors: int) -> dict[str, int]:
    """Returns the thread keys with which another Core shares out the same threads and streams as this configuration of a hook has.

    If there are more streams than processors, each stream has a single thread, and no number of threads is returned.
    """
    threads, streams = config[THREADS_KEY], config[STREAMS_KEY]
    keys = {STREAMS_KEY: streams}
    return keys if threads * streams > processors else {**keys, THREADS_KEY: threads * streams}


OLD_KEY = "CPU_THREADS_PER_STREAM"


def multiply_streams(config: Mapping[str, Any], *, device: str, where: str = "") -> Mapping[str, Any]:
    """Returns the values with INFERENCE_NUM_THREADS in place of CPU_THREADS_PER_STREAM: that many times the streams of the same call.

    `where` replaces the device in messages: "network 'net' on CPU".

    Raises: ConfigValueError if either is no number of 1 or more, or the number of streams follows from the threads.
    """
    folded = {name.strip().upper(): value for name, value in config.items() if isinstance(name, str)}
    if OLD_KEY not in folded:
        return config
    names = STREAMS_KEY, "CPU_THROUGHPUT_STREAMS", f"{device.partition(':')[0].partition('.')[0]}_THROUGHPUT_STREAMS"
    given = [folded[name] for name in names if name in folded]
    streams = given[0] if given else 1
    is_throughput = not given and str(folded.get(HINT_KEY, "")).strip().upper() == THROUGHPUT
    threads, count = _read_count(folded[OLD_KEY]), _read_count(streams)
    if threads is None or count is None or is_throughput:
        raise ConfigValueError(
            f"configuration key {OLD_KEY} of {where or f'device {device}'}: expected an int of 1 or more, and {STREAMS_KEY} as one beside "
            f"it, got {folded[OLD_KEY]!r} and {'the hint THROUGHPUT' if is_throughput else repr(streams)}; {THREADS_KEY} says how many "
            "threads all streams have together"
        )
    return {name: threads * count if str(name).strip().upper() == OLD_KEY else value for name, value in config.items()}


def read_value(name: str, known: str, config: Mapping[str, Any]) -> Any:
    """Returns the value of a key of a complete configuration; `name` is the name that the caller used, `known` the declared name."""
    if known == THREADS_KEY and name.strip().upper() == OLD_KEY:
        return config[THREADS_KEY] // config[STREAMS_KEY]
    return config[known]


def _read_count(value: Any) -> int | None:
    """Returns an int of 1 or more, which may be a text; None for anything else."""
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
