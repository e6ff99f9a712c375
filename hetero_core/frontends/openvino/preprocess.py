"""PrePostProcessor: conversions of inputs and outputs, which become nodes of the model by `with_inputs` and `with_outputs`.

The steps of an input run in the order in which a program gives them; hetero describes as many of them at once as stand in its own order.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from hetero_core.frontends.openvino.model import Model
from hetero_core.frontends.openvino.ports import Output
from hetero_core.frontends.openvino.shapes import Layout, Listed, PartialShape, Type, translated
from hetero_core.network import border
from hetero_core.network.border import LAYOUT_OF_RANK

_ORDER = ("color", "crop", "resize", "pad", "mean", "scale")

ColorFormat = Enum(
    "ColorFormat", "UNDEFINED RGB BGR GRAY RGBX BGRX NV12_SINGLE_PLANE I420_SINGLE_PLANE NV12_TWO_PLANES I420_THREE_PLANES"
)
PaddingMode = Enum("PaddingMode", "CONSTANT REFLECT SYMMETRIC")
ResizeAlgorithm = Enum(
    "ResizeAlgorithm", {"RESIZE_LINEAR": "bilinear", "RESIZE_CUBIC": "cubic", "RESIZE_NEAREST": "nearest"}, module=__name__
)


class InputModelInfo(Listed):
    """The model's own input or output."""

    def __init__(self, info: InputInfo | OutputInfo) -> None:
        self._info = info

    def set_layout(self, layout: Any) -> InputModelInfo:
        """Sets the order of the axes of the model's input or output."""
        self._info.put_layout("model_layout", layout)
        return self


class OutputInfo(Listed):
    """All about an output: `tensor()` and `postprocess()` are this object. `fields` are those of hetero's OutputInfo."""

    def __init__(self, port: Output) -> None:
        self.port = port
        self.fields: dict[str, Any] = {}

    def put_layout(self, field: str, layout: Any) -> None:
        """Sets a layout in `fields`; an empty one says nothing."""
        letters = Layout(layout).name_axes(len(self.port.partial_shape))
        if letters:
            self.fields[field] = letters

    def tensor(self) -> Any:
        """Returns this object, for the array that a program has."""
        return self

    preprocess = postprocess = tensor

    def model(self) -> InputModelInfo:
        """Returns the model's own side."""
        return InputModelInfo(self)

    def set_element_type(self, type: Any = Type.f32) -> Any:  # noqa: A002  # OpenVINO's name
        """Sets the element type of the array."""
        self.fields["precision"] = Type(type).value
        return self

    def set_layout(self, layout: Any) -> Any:
        """Sets the order of the axes of the array."""
        self.put_layout("layout", layout)
        return self

    convert_element_type = set_element_type

    def convert_layout(self, dst_layout: Any) -> Any:
        """Sets the order of the axes of the array."""
        return self.set_layout(dst_layout)


class InputInfo(OutputInfo):
    """All about an input: `tensor()` and `preprocess()` are this object. `fields` are those of hetero's InputInfo for the array."""

    def __init__(self, port: Output) -> None:
        super().__init__(port)
        self._color = ColorFormat.UNDEFINED
        self._spatial: dict[str, int] = {}
        # Each step with its arguments; their axes need the layouts, which may be said later.
        self._steps: list[tuple[str, Any]] = []

    def _refuse(self, reason: str) -> RuntimeError:
        return RuntimeError(f"input '{self.port.any_name}': {reason}")

    # The array that a program gives

    def set_color_format(self, format: Any) -> InputInfo:  # noqa: A002  # OpenVINO's name
        """Sets the colors of the array. Raises: RuntimeError for planes in arrays of their own."""
        if format.name.endswith("PLANES"):
            raise self._refuse(f"{format.name} are several arrays; join the planes, and say {format.name[:4]}_SINGLE_PLANE")
        self._color = format
        if format.name.endswith("SINGLE_PLANE"):
            self.fields.setdefault("layout", "NHWC")
        return self

    def set_shape(self, shape: Any) -> InputInfo:
        """Sets the shape of the array."""
        self.fields["shape"] = [size.to_size() for size in PartialShape(shape)]
        return self

    def set_from(self, tensor: Any) -> InputInfo:
        """Takes element type and shape of an array or a Tensor."""
        self.set_element_type(tensor.element_type if hasattr(tensor, "element_type") else tensor.dtype)
        return self.set_shape(tensor.shape)

    def set_spatial_dynamic_shape(self) -> InputInfo:
        """Does nothing: `resize` leaves height and width open unless a shape is set."""
        return self

    def set_spatial_static_shape(self, height: int, width: int) -> InputInfo:
        """Sets height and width of the array; the remaining sizes are the model's."""
        self._spatial = {"H": height, "W": width}
        return self

    # The steps to the model's input

    def _add(self, step: str, arguments: Any) -> InputInfo:
        self._steps.append((step, arguments))
        return self

    def convert_element_type(self, type: Any = Type.f32) -> InputInfo:  # noqa: A002  # as above
        """Does nothing: the steps compute in f32 and end in the model's type. Raises: RuntimeError for a type that would round."""
        if Type(type).value not in (self.port.spec.dtype, "float32"):
            name = Type(type).to_string()
            raise self._refuse(f"convert_element_type({name}) would round between the steps, which compute in f32")
        return self

    def convert_layout(self, dst_layout: Any = None) -> InputInfo:
        """Brings the axes into this order, by letters or by the axes of the order before; into the model's without an argument."""
        return self._add("layout", dst_layout)

    def convert_color(self, dst_format: Any) -> InputInfo:
        """Converts the colors that `set_color_format` named."""
        if dst_format is self._color:
            return self
        source, self._color = self._color.name.removesuffix("_SINGLE_PLANE"), dst_format
        return self._add("color", f"{source}->{dst_format.name}")

    def reverse_channels(self) -> InputInfo:
        """Turns BGR into RGB, or RGB into BGR."""
        return self._add("color", "BGR->RGB")

    def crop(self, begin: Sequence[int], end: Sequence[int]) -> InputInfo:
        """Takes a part of the image, by the first and the end of each axis."""
        return self._add("crop", (begin, end))

    def resize(self, alg: Any, dst_height: int | None = None, dst_width: int | None = None) -> InputInfo:
        """Resizes to a height and a width, the model's without them."""
        return self._add("resize", (alg.value, dst_height, dst_width))

    def pad(self, pads_begin: Sequence[int], pads_end: Sequence[int], value: float, mode: Any) -> InputInfo:
        """Adds pixels of a value around the image, or mirrors it. Raises: RuntimeError for SYMMETRIC, and for several values."""
        if mode.name == "SYMMETRIC" or not isinstance(value, int | float):
            raise self._refuse(f"pad with {mode.name} and {value!r}; expected PaddingMode.CONSTANT or REFLECT, and one number")
        return self._add("pad", (pads_begin, pads_end, float(value), mode.name.lower()))

    def mean(self, value: float | Sequence[float]) -> InputInfo:
        """Subtracts a number, or one for each channel."""
        return self._add("mean", value)

    def scale(self, value: float | Sequence[float]) -> InputInfo:
        """Divides by a number, or by one for each channel."""
        return self._add("scale", value)

    # The steps as hetero has them

    def settle(self) -> list[border.InputInfo]:
        """Returns descriptions of hetero: of the program's array, then of the array that the steps of the one before make.

        Each has its steps in the order of `_ORDER`; a step that comes too late for it begins the next.

        Raises: RuntimeError if an axis has no letter, and if a resize does not end at the model's sizes.
        """
        model_layout = self._find_model_layout()
        first = next((arguments for step, arguments in self._steps if step == "layout"), None)
        if isinstance(first, list | tuple):
            # Without letters of its own, the array has those that these axes bring into the model's order.
            letter_of_axis = dict(zip(first, model_layout, strict=True))
            self.fields.setdefault("layout", "".join(letter_of_axis[axis] for axis in sorted(letter_of_axis)))
        layout = str(self.fields.get("layout", model_layout))
        described = [dict(self.fields)]
        if self._spatial:
            described[0]["shape"] = [self._spatial.get(letter) for letter in self._require_letters(layout)]
        target: dict[str, int] = {}  # the sizes behind the resize and the pad of a description
        for step, arguments in self._steps:
            if step == "layout":
                layout = _find_layout(arguments, before=layout, of_model=model_layout)
                continue
            if any(other in described[-1] for other in _ORDER[_ORDER.index(step) :]):
                described.append({"shape": [target.get(letter) for letter in self._require_letters(model_layout)]})
                target = {}
            described[-1][step] = arguments
            if step == "resize":
                described[-1][step], sizes = arguments[0], zip("HW", arguments[1:], strict=True)
                target = {letter: size for letter, size in sizes if size is not None} or self._find_sizes(model_layout)
            elif step in ("crop", "pad"):
                bounds = zip(self._require_letters(layout), *arguments[:2], strict=True)
                described[-1][step] = {letter: (first, last) for letter, first, last in bounds if letter in "DHW" or first}
            if step == "pad":
                described[-1]["pad_value"], described[-1]["pad_mode"] = arguments[2:]
                target = {letter: size + sum(described[-1]["pad"].get(letter, (0,))) for letter, size in target.items()}
        for letter, size in self._find_sizes(model_layout).items():
            if target.get(letter, size) != size:
                raise self._refuse(f"resize and pad give {letter} {target[letter]}; the model's is {size}")
        if len(described) > 1 or any(step == "layout" for step, _ in self._steps):
            described[-1]["model_layout"] = model_layout
        return [border.InputInfo(**fields) for fields in described]

    def _find_model_layout(self) -> str:
        """Returns the letters of the model's axes: as said, else as the last conversion makes them, else those of the rank."""
        converted = [str(arguments) for step, arguments in self._steps if step == "layout" and isinstance(arguments, str | Layout)]
        said = self.fields.get("model_layout") or (Layout(converted[-1]).letters if converted else self.port.layout.letters)
        return str(said or LAYOUT_OF_RANK.get(len(self.port.partial_shape), ""))

    def _find_sizes(self, layout: str) -> dict[str, int]:
        """Returns the known height and width of the model."""
        sizes = zip(self._require_letters(layout), self.port.partial_shape, strict=True)
        return {letter: size.get_length() for letter, size in sizes if letter in "HW" and size.is_static}

    def _require_letters(self, layout: str) -> str:
        rank = len(self.port.partial_shape)
        if len(layout) != rank:
            raise self._refuse(f"it has {rank} axes; say their layout with set_layout, got '{layout}'")
        return layout


def _find_layout(layout: Any, *, before: str, of_model: str) -> str:
    """Returns the letters of a layout, which may name axes of the layout before it; the model's of None."""
    if layout is None:
        return of_model
    return "".join(before[axis] for axis in layout) if isinstance(layout, list | tuple) else Layout(layout).letters


class PrePostProcessor:
    """Describes inputs and outputs of a model as a program has them; `build` puts the conversions into the model."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._inputs: dict[str, InputInfo] = {}
        self._outputs: dict[str, OutputInfo] = {}

    def input(self, key: Any = None) -> InputInfo:
        """Returns an input by name or index; the only one without. Raises: RuntimeError."""
        port = self._model.input(key)
        return self._inputs.setdefault(port.any_name, InputInfo(port))

    def output(self, key: Any = None) -> OutputInfo:
        """Returns an output by name or index; the only one without. Raises: RuntimeError."""
        port = self._model.output(key)
        return self._outputs.setdefault(port.any_name, OutputInfo(port))

    @translated
    def build(self) -> Model:
        """Changes the model in place, and returns it. Raises: RuntimeError for conversions that do not fit the model or each other."""
        network = self._model.network
        for name, info in self._inputs.items():
            for described in reversed(info.settle()):  # the nearest to the model comes first
                network = network.with_inputs({name: described})
        self._model.network = network.with_outputs({name: border.OutputInfo(**info.fields) for name, info in self._outputs.items()})
        return self._model
