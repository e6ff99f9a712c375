"""LOG_LEVEL sets the loggers of the core and of the device's package; the end of the Core restores them."""

from __future__ import annotations

import logging

import onnx.parser
import pytest

from hetero_core import Core
from hetero_core.errors import ConfigValueError

MODEL = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Abs (x) }')


def read_levels(*packages: str) -> list[int]:
    return [logging.getLogger(package).level for package in packages]


def test_level_of_the_core_reaches_all_devices_and_is_restored() -> None:
    with Core() as core:
        core.set_config({"LOG_LEVEL": "LOG_INFO"})
        assert read_levels("hetero_core") == [logging.INFO]
        assert core.get_config("CPU", "LOG_LEVEL") == "LOG_INFO"
        assert read_levels("hetero_core", "hetero_cpu") == [logging.INFO] * 2
        core.set_config({"LOG_LEVEL": None})
        assert read_levels("hetero_core") == [logging.NOTSET]
        core.set_config({"LOG_LEVEL": "LOG_ERROR"})
    assert read_levels("hetero_core", "hetero_cpu") == [logging.NOTSET] * 2


@pytest.mark.parametrize(
    ("name", "level"), [("LOG_NONE", 60), ("LOG_ERROR", 40), ("LOG_WARNING", 30), ("LOG_DEBUG", 10), ("LOG_TRACE", 10)]
)
def test_level_of_a_load_is_that_of_its_device(name: str, level: int) -> None:
    with Core() as core:
        core.load_network(MODEL, "TEMPLATE", {"log_level": name})
        assert read_levels("hetero_core", "hetero_template", "hetero_cpu") == [level, level, logging.NOTSET]
    assert read_levels("hetero_core", "hetero_template") == [logging.NOTSET] * 2


def test_level_that_is_none_is_refused(core: Core) -> None:
    with pytest.raises(ConfigValueError, match="LOG_LEVEL of device CPU: expected one of LOG_DEBUG, LOG_ERROR, LOG_INFO"):
        core.load_network(MODEL, "CPU", {"LOG_LEVEL": "LOUD"})
