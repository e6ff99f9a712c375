"""The options that bring the inputs and outputs of a model into another form, for the commands that run it: the steps become nodes."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero_core.cli.answer import UsageError
from hetero_core.cli.inputs import IMAGES, measure_image
from hetero_core.cli.options import Parser, add_repeated, reshape
from hetero_core.network.border import InputInfo
from hetero_core.network.types import Dimension

if TYPE_CHECKING:
    from hetero_core.network.graph import Network
    from hetero_core.transforms.editing import EditableNetwork

MeasuredImage = Callable[[], Mapping[str, Dimension]]
"""Returns the sizes of an image by the letter of their axis; called if it is resized."""
_DESCRIPTIONS = {
    "layout": "the order of the axes of the array, as in NHWC",
    "precision": "the element type of the array, as in U8",
    "color": "a change of colors, as in 'BGR->RGB'",
    "resize": "nearest, bilinear, cubic or area: brings height and width to those of the model",
    "mean": "a number, or one for each channel, to subtract",
    "scale": "a number, or one for each channel, to divide by",
}


def add_preparation_options(parser: Parser) -> argparse._ArgumentGroup:
    """Returns a new group with the options that bring inputs into the model's form."""
    group = parser.add_argument_group("preparation of the model")
    text = """run the model for this shape of an input, or this value of a named size; for an exported network the shape of a random
    input with open dimensions"""
    add_repeated(group, "--shape", metavar="NAME=SIZE,...", help=text)
    for name, summary in _DESCRIPTIONS.items():
        group.add_argument(f"--{name}", action="append", default=[], metavar="[NAME=]VALUE", help=summary)
    return group


def find_given(options: argparse.Namespace, *more: str) -> list[str]:
    """Returns the options of the call that need a model; `more` are names of further such options."""
    return [f"--{name}" for name in (*_DESCRIPTIONS, *more) if getattr(options, name)]


def choose_values(network: EditableNetwork, values: Sequence[str]) -> EditableNetwork:
    """Returns the network with these values as its outputs, itself without any. Raises: InvalidNetworkError for an unknown name."""
    if not values:
        return network
    known = [spec.name for spec in network.outputs]
    added = [value for value in dict.fromkeys(values) if value not in known]
    return network.with_outputs(add=added, only=values)


def prepare_network(network: EditableNetwork, options: argparse.Namespace) -> EditableNetwork:
    """Returns the network as the options ask for it: outputs, then shapes and batch, then the preparation of inputs.

    Raises: UsageError for texts that cannot be read; InvalidNetworkError for changes that the network does not allow.
    """
    network = reshape(choose_values(network, options.output), options.shape)
    if options.batch is not None:
        network = network.with_batch(options.batch)
    files = _list_images(options.input, [spec.name for spec in network.inputs])
    return describe_inputs(network, options, {name: partial(_measure_image, file) for name, file in files.items()})


def describe_inputs(network: EditableNetwork, options: argparse.Namespace, images: Mapping[str, MeasuredImage]) -> EditableNetwork:
    """Returns the network for inputs as the options describe them; `images` has those from images. Raises: as `prepare_network`."""
    names = [spec.name for spec in network.inputs]
    described: dict[str, dict[str, Any]] = {}
    for option in _DESCRIPTIONS:
        for text in getattr(options, option):
            name, value = _split_value(text, option, names)
            fields = described.setdefault(name, {})
            if option in fields:
                raise UsageError(f"--{option} {text}: input '{name}' has one already; leave one out")
            fields[option] = _read_numbers(value, option) if option in ("mean", "scale") else value
    infos = {name: _complete(InputInfo(**fields), images.get(name), network, name) for name, fields in described.items()}
    return network.with_inputs(infos) if infos else network


def _split_value(text: str, option: str, names: Sequence[str]) -> tuple[str, str]:
    name, equals, value = text.rpartition("=")
    if equals:
        return name, value
    if len(names) != 1:
        example = names[0] if names else "NAME"
        raise UsageError(f"--{option} {text}: the network has {len(names)} inputs; say which, as in --{option} {example}={text}")
    return names[0], text


def _read_numbers(text: str, option: str) -> float | tuple[float, ...]:
    try:
        numbers = tuple(float(piece) for piece in text.split(","))
    except ValueError as error:
        raise UsageError(f"--{option} {text}: expected a number, or one for each channel, as in 123.7,116.3,103.5") from error
    return numbers[0] if len(numbers) == 1 else numbers


def _list_images(texts: Sequence[str], names: Sequence[str]) -> dict[str, Path]:
    """Returns input -> image file, of the -i options; mistakes in these are reported when they are read."""
    files: dict[str, Path] = {}
    for text in texts:
        name, equals, file = text.partition("=")
        if not equals:
            name, file = (names[0] if len(names) == 1 else ""), text
        if name and Path(file).suffix.lower() in IMAGES:
            files[name] = Path(file)
    return files


def _measure_image(file: Path) -> dict[str, Dimension]:
    return {"N": 1, **dict(zip("HW", measure_image(file), strict=True))}


def _complete(info: InputInfo, image: MeasuredImage | None, network: Network, name: str) -> InputInfo:
    """Returns the description completed for an image: 8 bits, channels last, and its size."""
    if image is None:
        return info
    rank = next((len(spec.shape or ()) for spec in network.inputs if spec.name == name), 0)
    layout = info.layout if info.layout is not None else {2: "HW", 3: "HWC", 4: "NHWC"}.get(rank)
    info = replace(info, layout=layout, precision="U8" if info.precision is None else info.precision)
    if info.resize is None or layout is None:
        return info
    sizes = image()
    return replace(info, shape=tuple(sizes.get(letter) for letter in layout.upper()))
