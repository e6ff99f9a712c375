"""LOG_LEVEL: how much the loggers of hetero say, those of the core and of the package of a device. Handlers are the program's own."""

from __future__ import annotations

import logging

LOG_KEY = "LOG_LEVEL"
LEVELS = {
    "LOG_NONE": logging.CRITICAL + 10,
    "LOG_ERROR": logging.ERROR,
    "LOG_WARNING": logging.WARNING,
    "LOG_INFO": logging.INFO,
    "LOG_DEBUG": logging.DEBUG,
    "LOG_TRACE": logging.DEBUG,
}
"""OpenVINO's names -> levels of Python, which has none below DEBUG."""


def set_log_level(name: str | None, *packages: str) -> None:
    """Sets the level of the loggers of these packages, for the process; None gives it back to the program."""
    for package in packages:
        logging.getLogger(package).setLevel(logging.NOTSET if name is None else LEVELS[name])
