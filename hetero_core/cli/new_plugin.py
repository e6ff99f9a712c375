"""`hetero new-plugin`: writes the package of a device, to be installed and tested at once.

`new_plugin_files` has the files at their places below the folder of a plugin, whose names stand for their placeholders. A device with a
queue and an engine are TEMPLATE's own sources, which the core's wheel holds as texts.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

from hetero_core.cli.answer import OK, Answer, UsageError
from hetero_core.cli.options import Parser
from hetero_core.devices.known_devices import known_devices
from hetero_core.devices.registry import DEVICES_GROUP

KINDS: Mapping[str, str] = {
    "kernels": "kernels one by one, on the host's memory and on threads of the core",
    "asynchronous": "kernels one by one, in a memory and a queue of its own",
    "engine": "an engine that compiles whole graphs",
}

_FILES = Path(__file__).parent / "new_plugin_files"
_CORE = Path(__file__).parents[1]
_IN_WHEEL, _IN_CHECKOUT = _CORE / "template", _CORE.parent / "plugins" / "template" / "hetero_template"


def _write_texts(name: SimpleNamespace, kind: str) -> dict[str, str]:
    """Returns the files of a plugin of this kind: path below its folder -> text."""
    from importlib_metadata import distribution as find_distribution  # reads an installed distribution

    distribution = find_distribution("hetero-core")
    words = {"name": name, "kind": kind, "about": KINDS[kind], "version": distribution.version}
    words["device_kind"] = "engine" if kind == "engine" else "interpreter"
    words["api"] = "(1, 2)" if kind == "asynchronous" else "(1, 0)"  # the lowest version that has its hooks and arguments
    texts = {}
    for file in sorted(_FILES.rglob("*.txt")):
        path = file.relative_to(_FILES).with_suffix("").as_posix().replace("PACKAGE", name.package)
        texts[path] = file.read_text(encoding="utf-8").format(**words)
    texts |= {f"{name.package}/device.py": _write_device(name, kind), f"{name.package}/py.typed": ""}
    return {**texts, "LICENSE": distribution.read_text("licenses/LICENSE") or ""}


def _write_device(name: SimpleNamespace, kind: str) -> str:
    """Returns the source of a device with the names of the plugin in place of TEMPLATE's, and a first line of its own."""
    if kind == "kernels":
        path = Path(__file__).with_name("new_plugin_device.py.txt")
    else:
        file = "engine.py" if kind == "engine" else "device.py"
        path = _IN_WHEEL / f"{file}.txt" if _IN_WHEEL.exists() else _IN_CHECKOUT / file
    text = path.read_text(encoding="utf-8")
    end = text.index('"""', 3)
    text = f'"""{name.device}: {KINDS[kind]}.{text[end:]}'
    for placeholder, word in (("hetero_template", name.package), ("TEMPLATE", name.device), ("Template", name.prefix)):
        text = text.replace(placeholder, word)
    return text


def add_options(parser: Parser) -> None:
    """Adds the options of the command."""
    parser.add_argument("name", metavar="NAME", help="the device's name, for example MY_CHIP")
    kinds = "; ".join(f"{kind}: {about}" for kind, about in KINDS.items())
    parser.add_argument("--kind", choices=tuple(KINDS), default="kernels", help=f"{kinds} (default kernels)")
    parser.add_argument("--folder", metavar="FOLDER", help="where to write it (default: the distribution's name)")


def answer(options: argparse.Namespace) -> Answer:
    """Returns the files that were written. Raises: UsageError for a wrong or taken name, and for a folder that holds something."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]*([_-][A-Za-z0-9]+)*", options.name):
        raise UsageError(f"a device cannot be named '{options.name}'; expected letters, digits and single underscores, as MY_CHIP")
    # MY_CHIP is the device of the package hetero_my_chip, in hetero-my-chip, with the class MyChip.
    device = options.name.upper().replace("-", "_")
    package, prefix = f"hetero_{device.lower()}", "".join(part.capitalize() for part in device.split("_"))
    name = SimpleNamespace(device=device, package=package, distribution=package.replace("_", "-"), prefix=prefix)
    _require_free(name)
    folder = Path(options.folder or name.distribution)
    texts = _write_texts(name, options.kind)
    try:
        if folder.exists() and any(folder.iterdir()):
            raise UsageError(f"folder '{folder}' is not empty; give another one with --folder")
        for path, text in texts.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write the plugin to '{folder}': {error.strerror or error}") from error
    place = folder if folder.is_absolute() else f"./{folder}"
    steps = [f"  pip install -e {shlex.quote(f'{place}[test]')}", f"  hetero conformance {name.device} --level contract"]
    text = "\n".join([*(str(folder / path) for path in texts), "", "Next:", *steps])
    return Answer(text, {"device": name.device, "kind": options.kind, "folder": str(folder), "files": list(texts)}, OK)


def _require_free(name: SimpleNamespace) -> None:
    """Raises UsageError if the name belongs to an installed or known device, or its distribution to hetero itself."""
    from importlib_metadata import entry_points  # reads the installed distributions

    claims = [entry.dist for entry in entry_points(group=DEVICES_GROUP) if entry.name.strip().upper() == name.device]
    known, packages = known_devices().get(name.device), ("hetero-core", *(row.package for row in known_devices().values()))
    owner = getattr(claims[0], "name", "an installed package") if claims else known and known.package
    if owner or name.distribution in packages:
        reason = f"it is the device of {owner}" if owner else f"{name.distribution} is a package of hetero"
        raise UsageError(f"the name {name.device} is taken: {reason}. Give the plugin another name, as MY_{name.device}")
