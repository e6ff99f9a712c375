"""python -m hetero_core.frontends.onnxruntime [-d DEVICE] APP.py [arguments], or -m MODULE [arguments].

Starts Python again on the program, with HETERO_ONNXRUNTIME=1 and a `sitecustomize` on its path that puts this front end in the place of
ONNX Runtime. The program's own workers inherit both.
"""

from __future__ import annotations

import os
import subprocess
import sys

START_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "start")
USAGE = "usage: python -m hetero_core.frontends.onnxruntime [-d DEVICE] (APP.py | -m MODULE) [arguments]"


def main(words: list[str]) -> int:
    """Runs a program, and returns its exit status."""
    environment = dict(os.environ)
    if words[:1] in (["-d"], ["--device"]):
        if len(words) > 1:
            environment["HETERO_DEVICE"] = words[1]
        words = words[2:]
    if not words or words[0] in ("-h", "--help") or words == ["-m"]:
        sys.stderr.write(USAGE + "\n")
        return 0 if words[:1] in (["-h"], ["--help"]) else 2
    environment["HETERO_ONNXRUNTIME"] = "1"
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (START_FOLDER, environment.get("PYTHONPATH"))))
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing starts its workers
    command = [sys.executable, *flags, *words]
    if os.name == "posix":
        os.execve(sys.executable, command, environment)
    return subprocess.call(command, env=environment)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
