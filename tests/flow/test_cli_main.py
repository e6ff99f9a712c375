"""The `hetero` command as a process: dispatch, exit codes, a single JSON document, and no traceback for a user's mistake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import importlib_metadata
import pytest

from hetero_core.cli import devices
from hetero_core.cli.main import COMMANDS, main
from hetero_core.errors import UnsupportedNodesError


def fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `hetero devices` raise an error."""

    def answer(_: object) -> object:
        raise error

    monkeypatch.setattr(devices, "answer", answer)


def test_help_lists_every_command_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(["--help"])
    assert leaving.value.code == 0
    printed = capsys.readouterr().out
    assert [command for command in COMMANDS if f"    {command}" not in printed] == []
    assert "0 ok, 1 the result is wrong" in printed


HELP = """
import json, sys
from hetero_core.cli.main import COMMANDS, main
module_of_command = {name: "hetero_core.cli." + name.replace("-", "_") for name in COMMANDS}
loaded = {}
for command in ("", *COMMANDS):
    try: main([*filter(None, [command]), "--help"])
    except SystemExit: pass
    loaded[command] = [name for name in sys.modules if name in module_of_command.values()]
    heavy = [name for name in sys.modules if name.partition(".")[0] in ("onnx", "hetero_cpu", "hetero_template", "hetero_hetero")]
    loaded[command] += heavy
    for name in module_of_command.values(): sys.modules.pop(name, None)
sys.stderr.write(json.dumps(loaded))
"""


def test_help_of_a_command_imports_neither_another_nor_a_plugin() -> None:
    ended = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=False, timeout=900)
    usages = [line.split()[2] for line in ended.stdout.splitlines() if line.startswith("usage: hetero ")][1:]
    assert usages == list(COMMANDS)
    modules = {command: [f"hetero_core.cli.{command.replace('-', '_')}"] for command in COMMANDS}
    assert json.loads(ended.stderr) == {"": [], **modules}


@pytest.mark.skipif(sys.platform == "win32", reason="the system has no terminals of this kind")
def test_terminal_has_colours_and_width_and_a_pipe_neither() -> None:
    import pty

    command = [
        sys.executable,
        "-c",
        "from hetero_core.cli.answer import format_table as t; print(t(('NAME', 'R'), [('n' * 90, 'DIFFERS')]))",
    ]
    plain = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": "40"}
    ended = subprocess.run(command, env=plain, capture_output=True, text=True, check=True, timeout=900)
    assert ended.stdout.splitlines() == [f"NAME{' ' * 88}R", f"{'n' * 90}  DIFFERS"]
    reading, writing = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "40"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(command, env=environment, stdout=writing, stderr=subprocess.DEVNULL)
    os.close(writing)
    shown = b""
    with open(reading, "rb", buffering=0) as terminal:
        try:
            while chunk := terminal.read(4096):
                shown += chunk
        except OSError:
            pass  # Linux reports the end of a terminal as an error
    assert process.wait(timeout=900) == 0
    assert b"\x1b[1;31mDIFFERS" in shown
    assert b"n" * 41 not in shown


def test_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(["--version"])
    assert leaving.value.code == 0
    assert capsys.readouterr().out == f"hetero-core {importlib_metadata.version('hetero-core')}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND; see 'hetero --help'"),
        (["qurey"], "invalid choice: 'qurey'"),
        (["query", "m.onnx"], "the following arguments are required: -d/--device; see 'hetero query --help'"),
        (["devices", "--nam"], "unrecognized arguments: --nam"),
        (["devices", "--names", "--metric", "X"], "argument --metric: not allowed with argument --names"),
    ],
)
def test_wrong_usage_ends_with_2_and_names_the_help(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("hetero: error: ")
    assert message in printed.err


def test_wrong_usage_with_json_is_a_document_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", "--json", "m.onnx"]) == 2
    printed = capsys.readouterr()
    assert printed.err == ""
    error = json.loads(printed.out)["error"]
    assert error["type"] == "UsageError"
    assert error["exit_code"] == 2
    assert "-d/--device" in error["message"]


def test_unsupported_nodes_in_json_list_their_refusals(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fail_with(UnsupportedNodesError("no device", {"a": {"CPU": "no kernel"}}), monkeypatch)
    assert main(["devices", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["refusals"] == {"a": {"CPU": "no kernel"}}


def test_notes_of_an_error_are_printed_below_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    error = UnsupportedNodesError("no device", {})
    error.add_note("in stage 1 of 2")
    fail_with(error, monkeypatch)
    assert main(["devices"]) == 2
    assert capsys.readouterr().err == "hetero: error: no device\n  in stage 1 of 2\n"


def test_bug_shows_its_traceback_and_ends_with_70(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fail_with(RuntimeError("planted"), monkeypatch)
    assert main(["devices", "--json"]) == 70
    printed = capsys.readouterr()
    assert json.loads(printed.out)["error"]["message"] == "planted"
    assert "Traceback" in printed.err
    assert main(["devices"]) == 70
    assert capsys.readouterr().out == ""


def test_interrupt_ends_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fail_with(KeyboardInterrupt(), monkeypatch)
    assert main(["devices"]) == 128 + signal.SIGINT
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("arguments", [["--help"], ["devices", "--names"]], ids=" ".join)
def test_closed_pipe_ends_the_command_in_silence(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "hetero_core", *arguments], stdout=writing, stderr=subprocess.PIPE, check=False, timeout=900
        )
    finally:
        os.close(writing)
    # argparse ignores the error of its own help if standard output is unbuffered.
    allowed = (0, 128 + signal.SIGPIPE) if "--help" in arguments else (128 + signal.SIGPIPE,)
    assert ended.returncode in allowed
    assert ended.stderr == b""


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with names")
def test_pipe_as_a_model_is_refused_without_waiting(tmp_path: Path) -> None:
    pipe = tmp_path / "model.onnx"
    os.mkfifo(pipe)
    commands = [["inspect", str(pipe)], *([command, str(pipe), "-d", "CPU"] for command in ("run", "query"))]
    code = f"from hetero_core.cli.main import main\nprint([main(arguments) for arguments in {commands}])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=900)
    assert ended.stdout == "[2, 2, 2]\n"
    assert ended.stderr.count("is a pipe, expected a plain file") == 3
