"""The site of these pages: `nox -s site` builds it with Sphinx, Furo and MyST.

The pages stay plain Markdown. Four things are added to them while they are read: the sections of index.md become the navigation, links
to files outside of this folder lead to the repository, the two generated references are filled, and the commands of the gallery are
followed by the plans that they write.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import shlex
from pathlib import Path
from typing import Any

import hetero_core
from hetero_core.cli.main import main

DOCS = Path(__file__).parent
ROOT = DOCS.parent
REPOSITORY = "https://github.com/hetero-onnx/hetero/blob/main"

project = "hetero"
author = "the hetero authors"
release = importlib.metadata.version("hetero-core")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_argparse_cli"]
exclude_patterns = ["changes", "_build"]
html_theme = "furo"
html_title = f"hetero {release}"
html_theme_options = {
    "source_repository": "https://github.com/hetero-onnx/hetero/",
    "source_branch": "main",
    "source_directory": "docs/",
}
default_role = "code"
myst_heading_anchors = 4
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
sphinx_argparse_cli_prefix_document = True
maximum_signature_line_length = 100
highlight_language = "python"
suppress_warnings = ["misc.highlighting_failure"]

OPTIONS = """
```{sphinx_argparse_cli}
:module: hetero_core.cli.main
:func: build_parser
:prog: hetero
:title: hetero
:no_default_values:
```
"""
FRAME = """
```{raw} html
<p><a href="plans/%(file)s">Open the plan on a page of its own</a></p>
<iframe src="plans/%(file)s" title="%(file)s" loading="lazy" style="width: 100%%; height: 32rem; border: 1px solid #8886"></iframe>
```
"""
_COMMAND = re.compile(r"```console\n\$ hetero (visualize .* -o (\S+))\n```\n")
_LINK = re.compile(r"(\[[^\]]*\])\(([^()\s]+)\)")


def _lead_outside(page: Path, text: str) -> str:
    """Returns the text with its links to files outside of the docs as addresses in the repository."""

    def lead(match: re.Match[str]) -> str:
        label, target = match.groups()
        path = target.partition("#")[0]
        if not path or "://" in target or target.startswith("mailto:"):
            return match[0]
        file = Path(os.path.normpath(page.parent / path))
        if file.is_relative_to(DOCS) and file.suffix == ".md" and "changes" not in file.parts:
            return match[0]
        return f"{label}({REPOSITORY}/{file.relative_to(ROOT).as_posix()}{target[len(path) :]})"

    return _LINK.sub(lead, text)


def _list_navigation(text: str) -> str:
    """Returns the sections of the index as hidden tables of contents."""
    parts = []
    for section in text.split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        pages = [target.removesuffix(".md") for _, target in _LINK.findall(body) if "://" not in target and target.endswith(".md")]
        parts.append("\n".join([f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n", *dict.fromkeys(pages), "```\n"]))
    return "".join(parts)


def _list_classes() -> str:
    """Returns the directives that document every public name of the package and of the public modules."""
    text = (DOCS / "reference" / "public.md").read_text(encoding="utf-8")
    names = sorted(set(hetero_core.__all__) - {"ValueSpec", "hookimpl"})
    lines = [f".. autoclass:: hetero_core.{name}\n" for name in names]
    names.append("Array")  # a name for types, of several modules
    lines += [
        f"{module}\n{'-' * len(module)}\n\n.. automodule:: {module}\n   :exclude-members: {', '.join(names)}\n"
        for module in dict.fromkeys(re.findall(r"`(hetero_core\.[a-z][a-z_.]*)`", text))
    ]
    return "\n".join(["```{eval-rst}", *lines, "```\n"])


def _draw_plans(app: Any, error: Exception | None) -> None:
    """Runs the blocks of the gallery in the folder `plans` of the site: the Python block writes models, each command a plan."""
    if error is not None or app.builder.format != "html":
        return
    text = (DOCS / "gallery.md").read_text(encoding="utf-8")
    folder = Path(app.outdir) / "plans"
    folder.mkdir(exist_ok=True)
    with contextlib.chdir(folder):
        for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            exec(block, {})
        for command, _ in _COMMAND.findall(text):
            if main(shlex.split(command)) != 0:
                raise RuntimeError(f"the gallery has no plan: hetero {command}")
        for model in folder.glob("*.onnx"):
            model.unlink()


def _extend_page(app: Any, name: str, source: list[str]) -> None:
    page = DOCS / f"{name}.md"
    source[0] = _lead_outside(page, source[0])
    if name == "index":
        source[0] += _list_navigation(source[0])
    elif name == "gallery":
        source[0] = _COMMAND.sub(lambda match: match[0] + FRAME % {"file": match[2]}, source[0])
    elif name == "reference/api":
        source[0] += _list_classes()
    elif name == "reference/options":
        source[0] += OPTIONS


def _keep_signs(*arguments: Any) -> None:
    """Keeps asterisks and bars of a docstring, which is plain text, from being read as markup."""
    lines: list[str] = arguments[-1]
    lines[:] = [re.sub(r"([*|])", r"\\\1", line) for line in lines]


def setup(app: Any) -> None:
    """Registers the additions with Sphinx."""
    app.connect("source-read", _extend_page)
    app.connect("autodoc-process-docstring", _keep_signs)
    app.connect("build-finished", _draw_plans)
