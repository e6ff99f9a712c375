"""A device that breaks as its configuration says, installed for this process and for its children."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import onnx.parser
import pytest

from hetero_core import Core, Network

_BREAKING = dedent(
    '''
    """BREAKING: computes Neg; breaks where BREAKING_AT says, in the way that BREAKING_HOW says."""

    import ctypes
    import os
    import signal
    import threading

    import numpy as np

    from hetero_core import ConfigKey, Executable, Payload, QueryResult, hookimpl
    from hetero_core.network.writer import pack_network, unpack_network


    def break_now(how, sign=""):
        if sign:
            open(sign, "w").close()
        if how == "ABORT":
            os.abort()
        if how == "SEGV":
            ctypes.string_at(0)
        if how == "EXIT":
            os._exit(3)
        if how == "HANG":
            threading.Event().wait()
        if how == "PAUSE":
            threading.Event().wait(0.5)
            open(sign + ".over", "w").close()
        if how == "HANG_WITH_LOCK":
            ctypes.PyDLL(None).pause()
        if how == "RAISE":
            raise ValueError("a device of mine has had enough")
        if how == "EAT":
            blocks = []
            while True:
                blocks.append(np.ones(1 << 24))


    class Breaking(Executable):
        def __init__(self, network, config, is_compiled_again=True):
            self.network, self.inputs, self.outputs = network, network.inputs, network.outputs
            self.config, self._is_compiled_again = config, is_compiled_again
            self._how, self._sign = config["BREAKING_HOW"], config["BREAKING_SIGN"]

        def run(self, inputs, context):
            # Breaks for the numbers that it is told to; any other input is negated.
            if context.limits is not None:
                context.limits.enter(self.network.nodes[0].label)
            if inputs[0].flat[0] == 13:
                break_now(self._how, self._sign)
            return (-inputs[0],)

        def metrics(self):
            return {
                "PID": os.getpid(),
                "IS_COMPILED_AGAIN": self._is_compiled_again,
                "THREADS_OF_A_RUN": self.config["INFERENCE_NUM_THREADS"],
                "STREAMS": self.config["NUM_STREAMS"],
            }


    class Device:
        @hookimpl
        def config_keys(self):
            return {
                "BREAKING_HOW": ConfigKey(str, "NOT", "how it breaks"),
                "BREAKING_SIGN": ConfigKey(str, "", "a file that is made when it breaks"),
                "BREAKING_AT": ConfigKey(str, "RUN", "where it breaks", choices=("LOAD", "SECOND_LOAD", "QUERY", "RUN")),
            }

        @hookimpl
        def query_network(self, device, network, config):
            if config["BREAKING_AT"] == "QUERY":
                break_now(config["BREAKING_HOW"])
            kinds = {node.name: node.op_type == "Neg" for node in network.nodes}
            return QueryResult(
                {name: str(device) for name, good in kinds.items() if good},
                {name: "it computes Neg alone" for name, good in kinds.items() if not good},
            )

        @hookimpl
        def load_network(self, device, network, config):
            sign = config["BREAKING_SIGN"]
            is_second = config["BREAKING_AT"] == "SECOND_LOAD" and os.path.exists(sign)
            if config["BREAKING_AT"] == "LOAD" or is_second:
                break_now(config["BREAKING_HOW"], sign + ".second" if is_second else "")
            if config["BREAKING_AT"] == "SECOND_LOAD":
                open(sign, "w").close()
            return Breaking(network, config)

        @hookimpl
        def metrics(self):
            return {"RANGE_FOR_STREAMS": (1, 8)}

        @hookimpl
        def export_network(self, executable):
            # Code that a blob can do without; where it breaks by EXIT, it cannot.
            code = ("compiled",)
            spare = () if executable.config["BREAKING_HOW"] == "EXIT" else code
            return Payload({**pack_network(executable.network), "compiled": b"code"}, code=code, spare=spare)

        @hookimpl
        def import_network(self, device, payload, config):
            network = unpack_network(payload.sections)
            return Breaking(network, config, is_compiled_again="compiled" not in payload.sections)


    @hookimpl
    def create_device(core, name):
        return Device()
    '''
)


def install_breaking(folder: Path) -> None:
    """Writes the device into a folder, as an installation by pip would."""
    (folder / "breaking_device.py").write_text(_BREAKING)
    installed = folder / "breaking_device-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: breaking-device\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[hetero_core.devices]\nBREAKING = breaking_device\n")


@pytest.fixture(scope="session")
def breaking_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the device BREAKING, as an installation by pip would leave it."""
    folder = tmp_path_factory.mktemp("site")
    install_breaking(folder)
    return folder


@contextmanager
def open_core(folder: Path) -> Iterator[Core]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        with Core() as opened:
            yield opened
        sys.modules.pop("breaking_device", None)


@pytest.fixture(scope="module")
def core(breaking_folder: Path) -> Iterator[Core]:
    """A Core that the tests of a file share, with its child. A test that ends the child ends with a run, so that no crash counts."""
    with open_core(breaking_folder) as opened:
        yield opened


@pytest.fixture
def own_core(breaking_folder: Path) -> Iterator[Core]:
    """A Core for a test that closes it, configures it, or lets the device be given up."""
    with open_core(breaking_folder) as opened:
        yield opened


@pytest.fixture
def read(core: Core) -> Callable[[str], Network]:
    return lambda text: core.read_network(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}'))


@pytest.fixture
def negation(read: Callable[[str], Network]) -> Network:
    return read("negation (float[n] x) => (float[n] y) { y = Neg (x) }")


@pytest.fixture
def load(core: Core, negation: Network) -> Callable[..., Any]:
    return lambda **config: core.load_network(negation, "PROCESS:BREAKING", config)
