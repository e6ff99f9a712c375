"""Options that several commands share, how their texts are read, and the model that they name. Imports nothing heavy."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

from hetero_core.cli.answer import UsageError
from hetero_core.devices.switches import read_switches
from hetero_core.errors import ConfigKeyError, HeteroError, enumerate_choices, suggest
from hetero_core.files import replace_file
from hetero_core.network import affinity

if TYPE_CHECKING:
    from hetero_core.core import Core
    from hetero_core.network.graph import Network
    from hetero_core.network.types import ValueSpec
    from hetero_core.transforms.editing import EditableNetwork


def is_model_name(model: str) -> bool:
    """Says whether a text names a light model and no file. Raises: UsageError for a plain word that is neither."""
    if os.path.exists(model) or os.path.dirname(model) or os.path.splitext(model)[1]:
        return False
    from hetero_core.testing.models import LIGHT_MODELS  # with onnx

    if model in LIGHT_MODELS:
        return True
    hint = suggest(model, LIGHT_MODELS) or ";"
    raise UsageError(f"there is no file '{model}', and no model of this name{hint} these are {enumerate_choices(LIGHT_MODELS)}")


@contextlib.contextmanager
def open_named_model(model: str) -> Iterator[str]:
    """Gives the path of a model; that of a light model lasts as long as the block. Raises: as `is_model_name`; OSError."""
    if not is_model_name(model):
        yield model
        return
    import onnx  # heavy

    from hetero_core.testing.models import light_model

    with tempfile.TemporaryDirectory(prefix="hetero-model-") as folder:
        path = os.path.join(folder, f"{model}.onnx")
        onnx.save(light_model(model), path)
        yield path


class _StoreOnce(argparse.Action):
    """Keeps the value of an option, and refuses a second value, which would hide the first."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option: str | None = None) -> None:
        seen: dict[str, Any] = namespace.__dict__.setdefault("_seen", {})
        if option is not None and self.dest in seen:
            advice = f"HETERO:{seen[self.dest]},{values} is a device over both" if self.dest == "device" else "leave one out"
            raise UsageError(f"{option} is given twice: {seen[self.dest]} and {values}; {advice}")
        if option is not None:
            seen[self.dest] = values
        setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
    """A parser that raises its errors, so that `main` reports them like all errors, and refuses a second value of an option."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        for name in (None, "store"):
            self.register("action", name, _StoreOnce)

    def error(self, message: str) -> NoReturn:
        """Raises UsageError with the command that has the right usage."""
        raise UsageError(f"{message}; see '{self.prog} --help'")


def add_repeated(parser: argparse._ActionsContainer, *names: str, metavar: str, help: str) -> None:  # noqa: A002  # argparse's name
    """Adds an option that may be repeated; its values are a list, empty without the option."""
    parser.add_argument(*names, action="append", default=[], metavar=metavar, help=help)


def add_device_options(parser: Parser, *, required: bool = True) -> None:
    """Adds -d, -c, --pin and --affinity."""
    default = (read_switches().device or None) if required else None
    help_text = "for example CPU, GPU.1 or HETERO:GPU,CPU (default: HETERO_DEVICE of the environment)"
    parser.add_argument("-d", "--device", required=required and default is None, default=default, metavar="DEVICE", help=help_text)
    add_repeated(parser, "-c", "--config", metavar="KEY=VALUE", help="a configuration key of the device; may be repeated")
    add_pin_options(parser)


def add_pin_options(parser: Parser) -> None:
    """Adds --pin and --affinity."""
    text = "run these nodes there: a name, a glob, re:EXPRESSION or op:OPERATOR; may be repeated"
    add_repeated(parser, "--pin", metavar="PATTERN=DEVICE", help=text)
    parser.add_argument("--affinity", metavar="FILE", help="pins from the table [affinity] of a TOML file; --pin overrides them")


def add_shape_option(parser: argparse._ActionsContainer, of: str = "an input") -> None:
    """Adds --shape, for commands that reshape a model (see `reshape`) or draw inputs."""
    text = f"the shape of {of}, or the value of a named size for all inputs; may be repeated"
    add_repeated(parser, "--shape", metavar="NAME=SIZE,...", help=text)


def add_input_options(parser: Parser, title: str = "inputs") -> None:
    """Adds -i, --seed and --shape, for commands that draw missing inputs."""
    inputs = parser.add_argument_group(title, "inputs that are not given are random")
    add_repeated(inputs, "-i", "--input", metavar="NAME=FILE", help="a file as for 'hetero run', or NAME=VALUE; may be repeated")
    inputs.add_argument("--seed", type=whole_number(0), default=0, metavar="N", help="the seed of random inputs (0)")
    add_shape_option(inputs, "a random input with open dimensions")


def add_rtol(parser: argparse._ActionsContainer) -> None:
    """Adds --rtol, for commands that compare arrays."""
    text = "largest difference that passes, as a share of the largest expected value of each array (default: by element type)"
    parser.add_argument("--rtol", type=read_tolerance, metavar="R", help=text)


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """Returns a function that reads a whole number and raises ArgumentTypeError if it is below `least` or above `most`."""
    expected = f"a whole number of {least} or more" if most is None else f"a whole number of {least} to {most}"
    return partial(_read_number, int, lambda number: least <= number <= (number if most is None else most), expected)


def _read_number(read: Callable[[str], Any], is_valid: Callable[[Any], bool], expected: str, text: str) -> Any:
    with contextlib.suppress(ValueError):
        if is_valid(number := read(text)):
            return number
    raise argparse.ArgumentTypeError(f"expected {expected}, got {text}")


# Finite numbers of options. Raises: ArgumentTypeError for any other text.
read_tolerance = partial(_read_number, float, lambda number: 0 <= number < math.inf, "a number of 0 or more")
read_seconds = partial(_read_number, float, lambda number: 0 < number < math.inf, "seconds above 0")


def find_target(path: str) -> Path:
    """Returns the path of a file that a command writes at its end. Raises: UsageError if it cannot be written, before any work."""
    target = Path(path)
    if target.is_dir() or not target.parent.is_dir():
        raise UsageError(f"cannot write '{path}': {'it is a folder' if target.is_dir() else f'there is no folder {target.parent}'}")
    return target


@contextlib.contextmanager
def open_target(target: Path) -> Iterator[IO[bytes]]:
    """Gives the stream of a file, which appears complete or not at all. Raises: UsageError if it cannot be written."""
    try:
        with replace_file(target) as stream:
            yield stream
    except OSError as error:
        raise UsageError(f"cannot write '{target}': {error.strerror or error}") from error


def write_target(target: Path, content: bytes) -> None:
    """Writes a file, as `open_target` does."""
    with open_target(target) as stream:
        stream.write(content)


def read_config(options: argparse.Namespace) -> dict[str, str]:
    """Returns the -c options by key, as texts that the core converts. Raises: UsageError."""
    return _read_pairs(options.config, "-c", "KEY=VALUE", str.partition)


def share_config(core: Core, devices: Sequence[str], config: Mapping[str, str]) -> list[dict[str, str]]:
    """Returns each device's own keys of -c, all for a device that cannot be used. Raises: UsageError for a key of no device."""
    shares = [{name: value for name, value in config.items() if _has_key(core, device, name)} for device in devices]
    for name in config:
        if not any(name in share for share in shares):
            hint = suggest(name.upper(), {key for device in devices for key in core.config_keys(device)}) or ";"
            text = f"-c {name}: none of the devices {', '.join(devices)} has such a configuration key{hint}"
            raise UsageError(f"{text} 'hetero devices --verbose' lists them")
    return shares


def _has_key(core: Core, device: str, name: str) -> bool:
    from hetero_core.devices.config import resolve_key

    try:
        resolve_key(name, core.config_keys(device), device=device)
    except HeteroError as error:
        return not isinstance(error, ConfigKeyError)
    return True


def read_pins(options: argparse.Namespace) -> dict[str, str]:
    """Returns pattern -> device: pins of --pin override pins of --affinity; a pattern may hold "=".

    Raises: UsageError; AffinityError for the file.
    """
    from_file = {} if options.affinity is None else affinity.read_pins(options.affinity)
    return from_file | _read_pairs(options.pin, "--pin", "PATTERN=DEVICE", str.rpartition)


ONLY_INPUT = "<the only input>"
"""The name of an input in a text, if the call gives none."""


def read_shapes(texts: Sequence[str], inputs: Sequence[ValueSpec]) -> dict[str, tuple[int, ...]]:
    """Returns the --shape options, input or size to shape; "x=" is a scalar, "n=1,m=2" is two. Raises: UsageError."""
    single: list[str] = []
    for text in texts:  # a text with commas is a single option unless each piece is one, since names may hold commas
        text = text.replace(f"{ONLY_INPUT}=", f"{inputs[0].name}=") if len(inputs) == 1 else text
        pieces = re.split(r",(?=[^,=]+=)", text)
        single += pieces if all(re.fullmatch(r"[^,=]+=[\d\s]*(,[\d\s]+)*", piece) for piece in pieces) else [text]
    shapes = {}
    for name, sizes in _read_pairs(single, "--shape", "NAME=SIZE,SIZE,...", str.rpartition, may_be_empty=True).items():
        pieces = [piece.strip() for piece in sizes.split(",")] if sizes else []
        if not all(piece.isdecimal() for piece in pieces):
            raise UsageError(f"--shape {name}={sizes}: expected sizes separated by commas, as in {name}=1,3,224,224")
        shapes[name] = tuple(int(piece) for piece in pieces)
    return shapes


def _read_pairs(
    texts: Sequence[str], option: str, form: str, split: Callable[[str, str], tuple[str, str, str]], *, may_be_empty: bool = False
) -> dict[str, str]:
    """Returns the pairs of texts with "=". Raises: UsageError for another form, and for two values of one name."""
    pairs: dict[str, str] = {}
    for text in texts:
        left, equals, right = (piece.strip() for piece in split(text, "="))
        if not left or not equals or not (right or may_be_empty):
            raise UsageError(f"{option} {text}: expected {form}")
        if pairs.setdefault(left, right) != right:
            raise UsageError(f"{option} gives '{left}' twice: {pairs[left]} and {right}; leave one out")
    return pairs


def read_model(core: Core, path: str) -> EditableNetwork:
    """Returns the network of a model file, or of the light model of this name.

    Raises: errors of reading; UsageError for an exported network, which is compiled already, and for a word that is no name.
    """
    if is_model_name(path):
        from hetero_core.testing.models import light_model  # with onnx

        return core.read_network(light_model(path))
    try:
        return core.read_network(path)
    except HeteroError as error:
        from hetero_core.blobs.container import is_blob  # with numpy

        if is_blob(path):
            raise UsageError(f"'{path}' is an exported network; this needs the ONNX model that it was made from") from error
        raise


def reshape(network: EditableNetwork, shapes: Sequence[str]) -> EditableNetwork:
    """Returns the network for the shapes of --shape. Raises: UsageError; InvalidNetworkError for shapes that it cannot take."""
    if not shapes:
        return network
    from hetero_core.cli.inputs import choose_sizes

    return network.with_shapes(choose_sizes(read_shapes(shapes, network.inputs), network.inputs))


def find_list_key(core: Core, device: str) -> str | None:
    """Returns the configuration key with the devices over which a device splits networks; None if it runs whole networks itself."""
    return next((name for name, key in core.config_keys(device).items() if key.is_arguments), None)


def list_parts(core: Core, device: str, config: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the devices over which a device splits networks, by priority; empty if it runs whole networks itself."""
    from hetero_core.devices.names import parse_device_name, split_device_list

    key = find_list_key(core, device)
    if key is None:
        return ()
    arguments = parse_device_name(device).arguments or core.resolve_config(device, config)[key] or ""
    return tuple(dict.fromkeys(str(parse_device_name(part)) for part in split_device_list(arguments)))


def pin_network(core: Core, network: Network, device: str, pins: Mapping[str, str]) -> Network:
    """Returns the network with its pins. Raises: UsageError if the device does not split networks; AffinityError."""
    if not pins:
        return network
    if not find_list_key(core, device):
        need = "--pin and --affinity need a device that splits networks, as HETERO:GPU,CPU does"
        raise UsageError(f"{need}; {device} runs every node itself")
    return network.with_affinity(pins)


def read_pinned(core: Core, options: argparse.Namespace) -> tuple[Network, dict[str, str]]:
    """Returns the model with its shapes and pins, and the configuration. Raises: errors of the configuration first."""
    config = read_config(options)
    core.resolve_config(options.device, config)
    network = reshape(read_model(core, options.model), options.shape)
    return pin_network(core, network, options.device, read_pins(options)), config
