"""PrePostProcessor: conversions of inputs and outputs, which become nodes of the model by `with_inputs` and `with_outputs`.

The steps of an input run in one order: colors, crop, resize, pad, mean, scale. Several means and scales, in any order, become one of each.
A program that asks for another order gets an error, unless it swaps RGB and BGR behind a crop, a resize or a pad, which is the same in
front of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import numpy as np

from hetero_core.frontends.openvino.model import Model
from hetero_core.frontends.openvino.ports import Output
from hetero_core.frontends.openvino.shapes import Layout, PartialShape, Type, translated
from hetero_core.network import border
from hetero_core.network.border import LAYOUT_OF_RANK

_ORDER = ("color", "crop", "resize", "pad", "mean or scale")

ColorFormat = Enum(
    "ColorFormat", "UNDEFINED RGB BGR GRAY RGBX BGRX NV12_SINGLE_PLANE I420_SINGLE_PLANE NV12_TWO_PLANES I420_THREE_PLANES"
)
PaddingMode = Enum("PaddingMode", "CONSTANT REFLECT SYMMETRIC")
ResizeAlgorithm = Enum(
    "ResizeAlgorithm", {"RESIZE_LINEAR": "bilinear", "RESIZE_CUBIC": "cubic", "RESIZE_NEAREST": "nearest"}, module=__name__
)


class InputModelInfo:
    """The model's own input or output."""

    def __init__(self, info: InputInfo | OutputInfo) -> None:
        self._info = info

    def set_layout(self, layout: Any) -> InputModelInfo:
        """Sets the order of the axes of the model's input or output."""
        self._info.put_layout("model_layout", layout)
        return self


class OutputInfo:
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

    def convert_element_type(self, type: Any = Type.f32) -> Any:  # noqa: A002  # as above
        """Sets the element type of the array."""
        return self.set_element_type(type)

    def convert_layout(self, dst_layout: Any) -> Any:
        """Sets the order of the axes of the array."""
        return self.set_layout(dst_layout)


class InputInfo(OutputInfo):
    """All about an input: `tensor()` and `preprocess()` are this object. `fields` are those of hetero's InputInfo."""

    def __init__(self, port: Output) -> None:
        super().__init__(port)
        self._color = ColorFormat.UNDEFINED
        self._is_reordered = False
        self._steps: list[str] = []
        # What needs the layouts, which may be said later.
        self._late: list[Callable[[], None]] = []

    def settle(self) -> border.InputInfo:
        """Returns the description for hetero. Raises: RuntimeError if an axis has no letter."""
        for step in self._late:
            step()
        return border.InputInfo(**self.fields)

    def _refuse(self, reason: str) -> RuntimeError:
        return RuntimeError(f"input '{self.port.any_name}': {reason}")

    def _begin(self, step: str, **fields: Any) -> None:
        is_swap = fields.get("color") in ("BGR->RGB", "RGB->BGR") and "color" not in self._steps
        if is_swap and self._steps and self._steps[-1] in ("crop", "resize", "pad"):
            self._steps.insert(0, step)
            self.fields.update(fields)
            return
        if self._steps and _ORDER.index(step) <= _ORDER.index(self._steps[-1]):
            raise self._refuse(f"{step} after {self._steps[-1]}; the steps run in the order {', '.join(_ORDER)}, each once")
        self._steps.append(step)
        self.fields.update(fields)

    def _find_layout(self, *, of_model: bool) -> str:
        rank = len(self.port.partial_shape)
        model = str(self.fields.get("model_layout", self.port.layout.letters or LAYOUT_OF_RANK.get(rank, "")))
        layout = model if of_model else str(self.fields.get("layout", model))
        if len(layout) != rank:
            raise self._refuse(f"it has {rank} axes; say their layout with set_layout, got '{layout}'")
        return layout

    # The array that a program gives

    def set_color_format(self, format: Any) -> InputInfo:  # noqa: A002  # OpenVINO's name
        """Sets the colors of the array. Raises: RuntimeError for planes in arrays of their own."""
        if format.name.endswith("PLANES"):
            raise self._refuse(f"{format.name} are several arrays; join the planes, and say {format.name[:4]}_SINGLE_PLANE")
        self._color = format
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
        size_of_letter = {"H": height, "W": width}
        self._late.append(
            lambda: self.fields.update(shape=[size_of_letter.get(letter) for letter in self._find_layout(of_model=False)])
        )
        return self

    # The steps to the model's input

    def convert_element_type(self, type: Any = Type.f32) -> InputInfo:  # noqa: A002  # as above
        """Does nothing: the steps compute in f32 and end in the model's type. Raises: RuntimeError for a type that would round."""
        if Type(type).value not in (self.port.spec.dtype, "float32"):
            raise self._refuse(
                f"convert_element_type({Type(type).to_string()}) would round between the steps, which compute in f32"
            )
        return self

    def convert_layout(self, dst_layout: Any = None) -> InputInfo:
        """Brings the axes into the model's order. Raises: RuntimeError for another layout than the model's."""
        self._is_reordered = True
        letters = self._find_layout(of_model=True) if dst_layout is None else Layout(dst_layout).letters
        if self.fields.setdefault("model_layout", letters) != letters:
            raise self._refuse(f"convert_layout('{letters}'): the model's layout is {self.fields['model_layout']}")
        return self

    def convert_color(self, dst_format: Any) -> InputInfo:
        """Converts the colors that `set_color_format` named."""
        if dst_format is not self._color:
            self._begin("color", color=f"{self._color.name.removesuffix('_SINGLE_PLANE')}->{dst_format.name}")
        return self

    def reverse_channels(self) -> InputInfo:
        """Turns BGR into RGB, or RGB into BGR."""
        self._begin("color", color="BGR->RGB")
        return self

    def crop(self, begin: Sequence[int], end: Sequence[int]) -> InputInfo:
        """Takes a part of the image, by the first and the end of each axis."""
        self._begin("crop")
        return self._add_bounds("crop", begin, end)

    def resize(self, alg: Any, dst_height: int | None = None, dst_width: int | None = None) -> InputInfo:
        """Resizes to the model's height and width. Raises: RuntimeError for other sizes."""
        self._begin("resize", resize=alg.value)
        if dst_height is not None and dst_width is not None:
            self._late.append(lambda: self._check_target({"H": dst_height, "W": dst_width}))
        return self

    def _check_target(self, size_of_letter: dict[str, int]) -> None:
        for letter, size in zip(self._find_layout(of_model=True), self.port.partial_shape, strict=True):
            padded = size_of_letter.get(letter, 0) + sum(self.fields.get("pad", {}).get(letter, (0,)))
            if letter in size_of_letter and size != padded:
                raise self._refuse(f"resize and pad give {letter} {padded}; the model's is {size}")

    def pad(self, pads_begin: Sequence[int], pads_end: Sequence[int], value: float, mode: Any) -> InputInfo:
        """Adds pixels of a value around the image. Raises: RuntimeError for other modes, and for several values."""
        if mode.name != "CONSTANT" or not isinstance(value, int | float):
            raise self._refuse(f"pad with {mode.name} and {value!r}; expected PaddingMode.CONSTANT and one number")
        self._begin("pad", pad_value=float(value))
        return self._add_bounds("pad", pads_begin, pads_end)

    def _add_bounds(self, step: str, begin: Sequence[int], end: Sequence[int]) -> InputInfo:
        of_model = self._is_reordered

        def settle() -> None:
            bounds = zip(self._find_layout(of_model=of_model), begin, end, strict=True)
            self.fields[step] = {letter: (first, last) for letter, first, last in bounds if letter in "DHW" or first}

        self._late.insert(0, settle)  # before the check of resize
        return self

    def mean(self, value: float | Sequence[float]) -> InputInfo:
        """Subtracts a number, or one for each channel."""
        # (x - mean) / scale - value = (x - (mean + scale * value)) / scale
        return self._join("mean", lambda mean, scale: mean + scale * np.array(value, np.float64))

    def scale(self, value: float | Sequence[float]) -> InputInfo:
        """Divides by a number, or by one for each channel."""
        return self._join("scale", lambda _, scale: scale * np.array(value, np.float64))

    def _join(self, field: str, compute: Callable[[Any, Any], Any]) -> InputInfo:
        """Sets the mean or the scale of all steps so far and the next one. Raises: RuntimeError for unequal numbers of channels."""
        if self._steps[-1:] != [_ORDER[-1]]:
            self._begin(_ORDER[-1])
        try:
            joined = compute(np.array(self.fields.get("mean", 0.0)), np.array(self.fields.get("scale", 1.0)))
        except ValueError as error:
            raise self._refuse(f"{field} has another number of channels than mean or scale before it: {error}") from None
        self.fields[field] = joined.tolist()
        return self


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
        network = self._model.network.with_inputs({name: info.settle() for name, info in self._inputs.items()})
        self._model.network = network.with_outputs({name: border.OutputInfo(**info.fields) for name, info in self._outputs.items()})
        return self._model
