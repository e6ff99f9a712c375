"""Compiles the kernels that are shipped, for each level of processors.

    python plugins/cpu/shipping/ship.py [--check]

Runs the networks of networks.py with machine code as a processor of the level would, and compiles each kernel that their plans name for
the level. `--check` writes nothing and ends with 1 where a file is not what the code makes now. Needs a processor with AVX-512.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests" / "shared"))

from hetero_cpu.machine import compiler, shipped, translation
from hetero_cpu.machine.sources import digest_emitters
from hetero_cpu.open_plans import OpenPlans
from networks import list_networks

from hetero_core import Core


def tell(line: str) -> None:
    """Prints a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def collect_texts(level: str) -> dict[str, str]:
    """Returns the LLVM text of each kernel that a processor of a level compiles for the networks, by its name."""
    texts: dict[str, str] = {}
    emit = compiler.Compiler._emit

    def emit_and_keep(self: compiler.Compiler, kernel: compiler.Kernel) -> str:
        texts[kernel.name] = emit(self, kernel)
        return texts[kernel.name]

    compiler.Compiler._emit = emit_and_keep
    compiler.find_shipped = lambda: None
    # A network is planned again for sizes in another order.
    OpenPlans.keep_on_disk = lambda *_, **__: None
    compiler._describe_processor = lambda: " ".join(sorted(shipped.FLAGS[level]))
    for title, model, threads, inputs in list_networks():
        count = len(texts)
        network = Core().load_network(model, "CPU", {"INFERENCE_NUM_THREADS": threads, "CPU_KERNELS": "JIT"})
        for feeds in inputs:
            network.infer(feeds)
        tell(f"{level} {title}: {len(texts) - count} further kernels")
    return texts


def write_level(level: str, path: Path) -> None:
    """Writes the kernels of a level. Call it once in a process, which then plans as a processor of the level does."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        texts = collect_texts(level)
    shipped.write_shipped(str(path), {name: translation.translate(text, level) for name, text in texts.items()})
    tell(f"{level}: {len(texts)} kernels, {path.stat().st_size} bytes")


def write_all(folder: Path) -> None:
    """Writes all that is shipped into a folder."""
    commands = [[sys.executable, __file__, "--level", level, "--folder", str(folder)] for level in shipped.FLAGS]
    # One processor each: a level is planned and compiled by one thread.
    processes = [subprocess.Popen(command) for command in commands]
    codes = [process.wait() for process in processes]
    if any(codes):
        raise SystemExit(f"a level was not written: {codes}")
    (folder / shipped.DIGEST_FILE).write_text(f"{digest_emitters()}\n")


def find_differences(folder: Path) -> list[str]:
    """Returns the names of the shipped files that are not like those in a folder."""
    names = [shipped.DIGEST_FILE, *(f"{level}.kernels" for level in shipped.FLAGS)]
    return [name for name in names if (folder / name).read_bytes() != Path(shipped.FOLDER, name).read_bytes()]


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    parser.add_argument("--folder", type=Path, default=Path(shipped.FOLDER))
    parser.add_argument("--level", choices=shipped.FLAGS, help="write the kernels of one level alone")
    options = parser.parse_args()
    if options.level:
        write_level(options.level, options.folder / f"{options.level}.kernels")
        return 0
    if not options.check:
        options.folder.mkdir(exist_ok=True)
        write_all(options.folder)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        write_all(Path(folder))
        differences = find_differences(Path(folder))
    tell(f"other than what the code makes: {', '.join(differences) or 'none'}")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
