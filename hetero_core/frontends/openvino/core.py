"""Core, with which a program that uses OpenVINO starts."""

from __future__ import annotations

import io
import os
import re
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from hetero_core.contract import Extension
from hetero_core.core import Core as HeteroCore
from hetero_core.devices.provenance import find_core_version
from hetero_core.errors import ConfigKeyError, LoadError
from hetero_core.frontends.openvino.model import Model
from hetero_core.frontends.openvino.ports import read_array
from hetero_core.frontends.openvino.requests import CompiledModel
from hetero_core.frontends.openvino.settings import PRIORITIES_KEY, read_property, settle_properties
from hetero_core.frontends.openvino.shapes import Listed, translated, with_getters
from hetero_core.frontends.replacement import find_device
from hetero_core.network.writer import write_network


class Version(NamedTuple):
    """The version of a device."""

    build_number: str
    description: str


@with_getters("available_devices")
class Core(Listed):
    """Reads and compiles models; keeps properties of devices. HETERO_DEVICE in the environment overrides each name of a device."""

    def __init__(self) -> None:
        self._core = HeteroCore()
        self._properties: dict[str, Any] = {}
        self._ineffective: dict[str, dict[str, Any]] = {}

    @translated
    def read_model(self, model: Any, weights: Any = None, config: Any = None) -> Model:
        """Returns the model of an ONNX file, its bytes, a stream or a ModelProto. `weights` are not used, as in OpenVINO for ONNX.

        Raises: RuntimeError; for OpenVINO's IR it says how to get a model of ONNX.
        """
        unknown, _ = settle_properties(config, {}, where="reading a model")
        if unknown:
            names = ", ".join(sorted(unknown))
            raise ConfigKeyError(f"reading a model has no property {names}; compile_model takes those of devices")
        return Model(self._core.read_network(_read_source(model)))

    @translated
    def compile_model(
        self, model: Any, device_name: str | None = None, config: Any = None, *, weights: Any = None
    ) -> CompiledModel:
        """Returns a model, or the ONNX file of a path, compiled for a device, by default AUTO; `weights` as in `read_model`.

        Raises: RuntimeError with the nodes that the device refuses, unknown devices and properties.
        """
        device, settings, ineffective = self._settle(device_name, config)
        source = model.pinned_network() if isinstance(model, Model) else _read_source(model)
        loaded = self._core.load_network(source, device, settings)
        return CompiledModel(self._core, loaded, {**self._ineffective.get(device, {}), **ineffective})

    @translated
    def import_model(self, model_stream: Any, device_name: str, config: Any = None) -> CompiledModel:
        """Returns the compiled model of a blob that `export_model` wrote. Code in it is not used. Raises: RuntimeError."""
        device, settings, ineffective = self._settle(device_name, config)
        source = model_stream.getvalue() if isinstance(model_stream, io.BytesIO) else bytes(read_array(model_stream))
        return CompiledModel(self._core, self._core.import_network(source, device, settings), ineffective)

    @translated
    def query_model(self, model: Model, device_name: str, config: Any = None) -> dict[str, str]:
        """Returns node -> device, for the nodes that the device takes. Raises: RuntimeError."""
        device, settings, _ = self._settle(device_name, config)
        return dict(self._core.query_network(model.pinned_network(), device, settings).supported)

    @translated
    def add_extension(self, extension: Any) -> None:
        """Adds operators: an `Extension` of hetero or a list of such. Raises: RuntimeError for a library of OpenVINO."""
        for each in extension if isinstance(extension, list | tuple) else [extension]:
            if not isinstance(each, Extension):
                advice = "give a hetero_core.Extension, a Python function with its types"
                raise LoadError(f"{each!r} is an extension of OpenVINO; {advice}")
            self._core.add_extension(each)

    @property
    def available_devices(self) -> list[str]:
        """The working devices, without AUTO, HETERO, MULTI and BATCH, which compose other devices."""
        return list(self._core.available_devices)

    @translated
    def get_versions(self, device_name: str) -> dict[str, Version]:
        """Returns the version of a device, and of each device in its list."""
        versions = self._core.get_versions(self._find_device(device_name))
        return {name: Version(version.rpartition(" ")[2], version) for name, version in versions.items()}

    @translated
    def set_property(self, *device_and_properties: Any) -> None:
        """Sets properties: `set_property(properties)` or `set_property(device, properties)`. Raises: RuntimeError for unknown ones."""
        *names, properties = device_and_properties
        if names:
            device, settings, ineffective = self._settle(names[0], properties)
            self._core.set_config(settings, device)
            self._ineffective.setdefault(device, {}).update(ineffective)
            return
        settings, ineffective = settle_properties(properties, {}, where="the configuration of all devices")
        self._core.set_config(settings)
        self._properties.update({**settings, **ineffective})

    @translated
    def get_property(self, *device_and_property: str) -> Any:
        """Returns a metric or the value of a key of a device, or a property that was set for all devices. Raises: RuntimeError."""
        *names, name = device_and_property
        if names:
            device = self._find_device(names[0])
            get_metric, get_config = partial(self._core.get_metric, device), partial(self._core.get_config, device)
            return read_property(name, get_metric, get_config, self._ineffective.get(device, {}))
        if str(name) not in self._properties:
            raise ConfigKeyError(f"no value was set for '{name}' of all devices; say the device, get_property('CPU', '{name}')")
        return self._properties[str(name)]

    def _settle(self, name: str | None, properties: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """Returns the device, its configuration, and the hints without effect."""
        device, declared = self._find_device(name), self._core.config_keys(self._find_device(name))
        settings, ineffective = settle_properties(properties, declared, where=device)
        if find_device("") and PRIORITIES_KEY in settings and PRIORITIES_KEY not in declared:  # it stands in for AUTO or MULTI
            ineffective[PRIORITIES_KEY] = settings.pop(PRIORITIES_KEY)
        return device, settings, ineffective

    def _find_device(self, name: str | None) -> str:
        """Returns hetero's name of a device. OpenVINO's GPU and NPU are ids of OPENVINO unless a plugin has their name."""
        device = find_device("AUTO" if name is None else str(name))
        words = [word for word in ("GPU", "NPU") if word not in self._core.device_names and "OPENVINO" in self._core.device_names]
        return re.sub(rf"(?<![\w.])({'|'.join(words)})\b", r"OPENVINO.\1", device) if words else device


def _read_source(model: Any) -> Any:
    """Returns the path, bytes or ModelProto that hetero reads. Raises: LoadError for OpenVINO's IR and other objects."""
    if isinstance(model, io.BytesIO):
        model = model.getvalue()
    is_path = isinstance(model, str | os.PathLike)
    if (is_path and Path(model).suffix == ".xml") or (isinstance(model, bytes) and model.lstrip()[:5] == b"<?xml"):
        raise LoadError(
            f"{model if is_path else 'the text'} is OpenVINO's IR, and hetero reads ONNX: export the model from where it was trained "
            "(torch.onnx.export, optimum-cli export onnx, yolo export format=onnx); the device OPENVINO lets that engine compute it"
        )
    if is_path or isinstance(model, bytes) or type(model).__name__ == "ModelProto":
        return model
    kind = f"{type(model).__module__}.{type(model).__name__}"
    raise LoadError(f"expected a Model of {__package__}, a path of an ONNX file or its bytes, got {kind}")


def compile_model(model: Any, device_name: str | None = "AUTO", config: Any = None) -> CompiledModel:
    """Returns a model, or the ONNX file of a path, compiled by a Core of its own. Raises: as `Core.compile_model` does."""
    return Core().compile_model(model, device_name, config)


def convert_model(input_model: Any, input: Any = None) -> Model:  # noqa: A002  # OpenVINO's name
    """Returns the model of ONNX, with the shapes of `input` as `Model.reshape` takes them. Raises: RuntimeError for anything else."""
    model = Core().read_model(input_model)
    if input is not None:
        model.reshape(input)
    return model


@translated
def save_model(model: Model, output_model: str | os.PathLike[str], compress_to_fp16: bool = False) -> None:
    """Writes a model as ONNX. Raises: RuntimeError for OpenVINO's suffix, and for compressed weights."""
    if compress_to_fp16:
        raise LoadError("hetero does not compress the weights of a file; network.with_precision('FP32', 'FP16') changes a model")
    if Path(output_model).suffix == ".xml":
        raise LoadError(f"hetero writes ONNX, not OpenVINO's IR: save '{output_model}' with the suffix .onnx")
    write_network(model.pinned_network(), output_model)


def get_version() -> str:
    """Returns the version of OpenVINO's API that this front end has, and the version of hetero."""
    return f"2026.4.0-hetero-{find_core_version()}"
