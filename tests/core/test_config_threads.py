"""set_config during loads on several threads: each load sees either the old values or the new values, never a mixture or an error."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from hetero_core import Core, Network

ADD = "g (float[2] x) => (float[2] y) { y = Add(x, x) }"
VALUES = ({"PERF_COUNT": True, "NUM_STREAMS": 2}, {"PERF_COUNT": False, "NUM_STREAMS": 1})


def test_loads_go_on_while_another_thread_sets_the_configuration(core: Core, read: Callable[..., Network]) -> None:
    core.set_config(VALUES[0], "CPU")
    network, errors, over = read(ADD), list[BaseException](), threading.Event()

    def set_values() -> None:
        try:
            while not over.is_set():
                for values in VALUES:
                    core.set_config(values, "CPU")
                    core.set_config({"PERF_COUNT": values["PERF_COUNT"]}, "TEMPLATE.1")
        except BaseException as error:  # noqa: BLE001  # raised below, in the thread of the test
            errors.append(error)

    def load() -> None:
        try:
            for device in ("CPU", "TEMPLATE.1", "HETERO:TEMPLATE,CPU") * 8:
                loaded = core.load_network(network, device)
                assert loaded.infer({"x": np.ones(2, np.float32)})["y"].tolist() == [2, 2]
                if device == "CPU":
                    assert {name: loaded.get_config(name) for name in VALUES[0]} in VALUES
        except BaseException as error:  # noqa: BLE001  # as above
            errors.append(error)

    setter, loaders = threading.Thread(target=set_values), [threading.Thread(target=load) for _ in range(4)]
    for thread in (setter, *loaders):
        thread.start()
    for thread in loaders:
        thread.join(120)
    over.set()
    setter.join(120)
    assert errors == []
