"""Options of `hetero run` that make a network fit its inputs: shapes, batch, layout, precision, colors, resize, mean, scale, outputs.

Each is what the methods of a network do; a value is for NAME=, or for the only input. Imports nothing heavy at its head.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero_core.cli.answer import UsageError
from hetero_core.cli.options import Parser, add_repeated, reshape, whole_number
from hetero_core.network.border import InputInfo

if TYPE_CHECKING:
    from hetero_core.network.graph import Network
    from hetero_core.transforms.editing import EditableNetwork

IMAGES = (".png", ".jpg", ".jpeg")
_DESCRIPTIONS = {
    "layout": "the order of the axes of the array, as in NHWC",
    "precision": "the element type of the array, as in U8",
    "color": "a change of colors, as in 'BGR->RGB'",
    "resize": "nearest, bilinear, cubic or area: brings height and width to those of the model",
    "mean": "a number, or one for each channel, to subtract",
    "scale": "a number, or one for each channel, to divide by",
}


def add_preparation_options(parser: Parser) -> None:
    """Adds the options, in a group of their own."""
    group = parser.add_argument_group("preparation of the model")
    add_repeated(
        group,
        "--shape",
        metavar="NAME=SIZE,...",
        help="run the model for this shape of an input, or this value of a named size; for an exported network the shape "
        "of a random input with open dimensions",
    )
    group.add_argument("--batch", type=whole_number(1), metavar="N", help="run the model for this batch size")
    for name, summary in _DESCRIPTIONS.items():
        group.add_argument(f"--{name}", action="append", default=[], metavar="[NAME=]VALUE", help=summary)
    add_repeated(group, "--output", metavar="VALUE", help="only this output, or this inner value; may be repeated")


def find_given(options: argparse.Namespace) -> list[str]:
    """Returns the options that need a model, of those that were given."""
    return [f"--{name}" for name in ("batch", *_DESCRIPTIONS, "output") if getattr(options, name) not in (None, [])]


def prepare_network(network: EditableNetwork, options: argparse.Namespace) -> EditableNetwork:
    """Returns the network as the options ask for it: outputs, then shapes and batch, then what is done to inputs.

    Raises: UsageError for texts that cannot be read; InvalidNetworkError for what the network cannot do.
    """
    if options.output:
        known = [spec.name for spec in network.outputs]
        added = [value for value in dict.fromkeys(options.output) if value not in known]
        network = network.with_outputs(add=added, only=options.output)
    network = reshape(network, options.shape)
    if options.batch is not None:
        network = network.with_batch(options.batch)
    described = _describe_inputs(network, options)
    return network.with_inputs(described) if described else network


def _describe_inputs(network: Network, options: argparse.Namespace) -> dict[str, InputInfo]:
    names = [spec.name for spec in network.inputs]
    described: dict[str, dict[str, Any]] = {}
    for option in _DESCRIPTIONS:
        for text in getattr(options, option):
            name, value = _split_value(text, option, names)
            fields = described.setdefault(name, {})
            if option in fields:
                raise UsageError(f"--{option} {text}: input '{name}' has one already; leave one out")
            fields[option] = _read_numbers(value, option) if option in ("mean", "scale") else value
    files = _list_images(options.input, names)
    return {name: _complete(InputInfo(**fields), files.get(name), network, name) for name, fields in described.items()}


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
    """Returns input -> image file, of the -i options; what is wrong with these is said when they are read."""
    files: dict[str, Path] = {}
    for text in texts:
        name, equals, file = text.partition("=")
        if not equals:
            name, file = (names[0] if len(names) == 1 else ""), text
        if name and Path(file).suffix.lower() in IMAGES:
            files[name] = Path(file)
    return files


def _complete(info: InputInfo, file: Path | None, network: Network, name: str) -> InputInfo:
    """Returns the description with what an image file says by itself: 8 bits, channels last, and its size."""
    if file is None:
        return info
    from hetero_core.cli.images import measure_image  # imports Pillow

    spec = next((spec for spec in network.inputs if spec.name == name), None)
    rank = None if spec is None or spec.shape is None else len(spec.shape)
    usual = {2: "HW", 3: "HWC", 4: "NHWC"}
    layout = info.layout if info.layout is not None else usual.get(rank or 0)
    info = replace(info, layout=layout, precision="U8" if info.precision is None else info.precision)
    if info.resize is None or layout is None:
        return info
    sizes = dict(zip("HWC", measure_image(file), strict=True)) | {"N": 1}
    return replace(info, shape=tuple(sizes.get(letter) for letter in layout.upper()))
