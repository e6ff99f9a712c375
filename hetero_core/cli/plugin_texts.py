"""The files of a new plugin, written from TEMPLATE's: its text is copied into the core's wheel and read from the checkout otherwise."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

KINDS: Mapping[str, str] = {
    "kernels": "kernels one by one, on the host's memory and on threads of the core",
    "asynchronous": "kernels one by one, in a memory and a queue of its own",
    "engine": "an engine that compiles whole graphs",
}

_CORE = Path(__file__).parents[1]
_IN_WHEEL, _IN_CHECKOUT = _CORE / "template", _CORE.parent / "plugins" / "template" / "hetero_template"

# Parts of TEMPLATE that a device on the host's memory without a queue has no use for.
_OWN_MEMORY = frozenset(
    {
        "TemplateArray",
        "TemplateDevice.to_host",
        "TemplateDevice.from_host",
        "TemplateExecutable.start",
        "TemplateExecutable._run_queued",
        "TemplateExecutable.close",
        "_place",
    }
)


class TemplateTextError(Exception):
    """A text of TEMPLATE has not the form that is expected of it: our own fault, met by our tests."""


@dataclass(frozen=True, slots=True)
class PluginName:
    """A device's name with those that follow from it: `MY_CHIP` is the package hetero_my_chip and the distribution hetero-my-chip."""

    device: str

    @property
    def package(self) -> str:
        """The package's name."""
        return f"hetero_{self.device.lower()}"

    @property
    def distribution(self) -> str:
        """The distribution's name."""
        return self.package.replace("_", "-")

    @property
    def prefix(self) -> str:
        """The word that the names of its classes begin with."""
        return "".join(part.capitalize() for part in self.device.split("_"))


def write_texts(name: PluginName, kind: str) -> dict[str, str]:
    """Returns the files of a plugin of this kind: path below its folder -> text."""
    return {
        "pyproject.toml": _fill("pyproject.toml", name),
        "README.md": _fill("README.md", name, about=KINDS[kind]),
        f"{name.package}/__init__.py": _write_package(name, kind),
        f"{name.package}/device.py": _write_device(name, kind),
        f"{name.package}/py.typed": "",
        "tests/test_conformance.py": _fill("test_conformance.py", name),
        "docs/operators.md": _fill("operators.md", name),
        ".github/workflows/test.yml": _fill("test.yml", name),
    }


def _fill(file: str, name: PluginName, **words: str) -> str:
    """Returns a file of `new_plugin_files` with the names of the plugin in their places."""
    text = (Path(__file__).parent / "new_plugin_files" / f"{file}.txt").read_text(encoding="utf-8")
    return text.format(name=name, **words)


def _read_template(file: str) -> str:
    """Returns a file of TEMPLATE."""
    wheel = _IN_WHEEL / f"{file}.txt"
    return (wheel if wheel.exists() else _IN_CHECKOUT / file).read_text(encoding="utf-8")


def _write_package(name: PluginName, kind: str) -> str:
    text = _read_template("__init__.py")
    begin = text.index("TEMPLATE, the plugin to copy. ")
    end = text.index('"""', begin)
    text = f"{text[:begin]}{name.device}: {KINDS[kind]}. This file stays light: it is imported when the device is first needed.{text[end:]}"
    if kind == "engine":
        text = text.replace("imports NumPy and the kernels toolkit", "imports the engine").replace('"interpreter"', '"engine"')
    return _rename(text, name)


def _write_device(name: PluginName, kind: str) -> str:
    text = _read_template("engine.py" if kind == "engine" else "device.py")
    end = text.index('"""', 3)
    text = f'"""{name.device}: {KINDS[kind]}.{text[end:]}'
    return _rename(_cut_memory(text) if kind == "kernels" else text, name)


def _rename(text: str, name: PluginName) -> str:
    text = text.replace("hetero_template", name.package).replace("TEMPLATE", name.device)
    return text.replace("Template", name.prefix)


def _cut_memory(text: str) -> str:
    """Returns the device without its memory and its queue."""
    text = _cut_definitions(text, _OWN_MEMORY)
    for old, new in (
        ("from concurrent.futures import ThreadPoolExecutor\nfrom dataclasses import replace\n", ""),
        ("DeviceName, Done, Executable,", "DeviceName, Executable,"),
        ("import DeviceUnavailableError, InferenceError", "import DeviceUnavailableError"),
        ("from hetero_core.network.types import HOST, ValueSpec\n", ""),
        ("    # While one run computes, the next one waits in the queue with its inputs in place.\n    pipeline_depth = 2\n\n", ""),
        (" The queues belong to the loaded networks.", ""),
        (', memory=f"{device.name}:{device.id or IDS[0]}")', ")"),
        ("program: Program, *, memory: str)", "program: Program)"),
        ("        self.memory = memory\n", ""),
        ("tuple(_place(spec, memory) for spec in network.inputs)", "network.inputs"),
        ("tuple(_place(spec, memory) for spec in network.outputs)", "network.outputs"),
        (_between(text, "        # Its thread starts with", "max_workers=1, thread_name_prefix=memory)\n"), ""),
        ("Returns the outputs, each in the memory that its spec names; the caller waits.", "Returns the outputs by position."),
        (_between(text, "        values = tuple(value.read", "else value for value in inputs)\n"), ""),
        ("results = self._program.run(values,", "return self._program.run(inputs,"),
        (_between(text, "        return tuple(\n            result if spec", "        )\n"), ""),
    ):
        if text.count(old) != 1:
            raise TemplateTextError(f"TEMPLATE's device.py has {old!r} {text.count(old)} times; expected it once")
        text = text.replace(old, new)
    return text


def _between(text: str, begin: str, end: str) -> str:
    """Returns the part of a text from one mark to the end of another."""
    start = text.index(begin)
    return text[start : text.index(end, start) + len(end)]


def _cut_definitions(text: str, names: frozenset[str]) -> str:
    """Returns a module's text without these functions, classes and methods, and without the empty lines before each."""
    lines = text.splitlines(keepends=True)
    tree = ast.parse(text)
    inner = {
        f"{node.name}.{part.name}": part
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        for part in node.body
        if isinstance(part, ast.FunctionDef)
    }
    outer = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    definitions: dict[str, ast.ClassDef | ast.FunctionDef] = {**inner, **outer}
    for name in names:
        node = definitions[name]
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1
        while not lines[first - 1].strip():
            first -= 1
        for index in range(first, node.end_lineno or first):
            lines[index] = ""
    return "".join(lines)
