"""The name `openvino.runtime`, which OpenVINO had until 2025 and programs still import."""

from hetero_core.frontends.openvino import *  # noqa: F403  # the same names
