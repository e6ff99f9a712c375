"""`hetero new-plugin`: writes the package of a device, to be installed and tested at once."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from hetero_core.cli.answer import OK, Answer, UsageError
from hetero_core.cli.options import Parser, add_command
from hetero_core.cli.plugin_texts import KINDS, PluginName, write_texts


def add_parser(subparsers: argparse._SubParsersAction[Parser]) -> None:
    """Adds the command."""
    parser = add_command(subparsers, "new-plugin", "write the package of a device of your own", answer_new_plugin)
    parser.add_argument("name", metavar="NAME", help="the device's name, for example MY_CHIP")
    kinds = "; ".join(f"{kind}: {about}" for kind, about in KINDS.items())
    parser.add_argument("--kind", choices=tuple(KINDS), default="kernels", help=f"{kinds} (default kernels)")
    parser.add_argument("--folder", metavar="FOLDER", help="where to write it (default: the distribution's name)")


def answer_new_plugin(options: argparse.Namespace) -> Answer:
    """Returns the files that were written. Raises: UsageError for a name that no device can have, and for a folder that holds something."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]*([_-][A-Za-z0-9]+)*", options.name):
        raise UsageError(f"a device cannot be named '{options.name}'; expected letters, digits and single underscores, as MY_CHIP")
    name = PluginName(options.name.upper().replace("-", "_"))
    folder = Path(options.folder or name.distribution)
    texts = write_texts(name, options.kind)
    try:
        if folder.exists() and any(folder.iterdir()):
            raise UsageError(f"folder '{folder}' is not empty; give another one with --folder")
        for path, text in texts.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write the plugin to '{folder}': {error.strerror or error}") from error
    lines = [
        *(str(folder / path) for path in texts),
        "",
        "Next:",
        f"  pip install -e './{folder}[test]'" if not folder.is_absolute() else f"  pip install -e '{folder}[test]'",
        f"  hetero conformance {name.device} --level contract",
    ]
    return Answer("\n".join(lines), {"device": name.device, "kind": options.kind, "folder": str(folder), "files": list(texts)}, OK)
