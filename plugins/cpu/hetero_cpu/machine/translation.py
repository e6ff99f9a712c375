"""LLVM: the text of a module to an object file for the processor at hand. Run as a program, it does so for another process.

Rule: imports nothing of this project, since as a program it is run by its path. LLVM takes 50 MB when it is loaded and leaves 100
more to the allocator, which a process that runs networks is spared if a child compiles.

Messages are pickled: the text of a module, an empty one ends the program; back come the bytes of an object file or an error.
"""

from __future__ import annotations

import pickle
import re
import sys
from contextlib import suppress
from functools import cache
from typing import IO, Any

# LLVM orders instructions by a model of the processor. That of Skylake, which the level and processors up to Ice Lake have, needs more
# registers for Winograd's kernels than there are: 140 vectors are written to the stack and read back, with this model 22, and U-Nets took
# 1.15 to 1.4 times as long.
_TUNED_LEVEL, _TUNED_FOR = "x86-64-v4", "sapphirerapids"
_DEFINITION = re.compile(r"^(define .*\)) \{", re.MULTILINE)


def translate(text: str, level: str = "") -> bytes:
    """Returns the object file of a module, for the processor at hand or, with `level` such as "x86-64-v4", for all that have this level.

    Not safe for threads. Raises: RuntimeError if LLVM refuses the module.
    """
    target = _open_target(level)
    image: bytes = target.emit_object(optimize(text, level))
    return image


def optimize(text: str, level: str = "") -> Any:
    """Returns the module of a text after LLVM's passes, for the same processors as `translate`."""
    from llvmlite import binding  # type: ignore[import-not-found,import-untyped,unused-ignore]  # llvmlite ships no types

    target = _open_target(level)
    if level == _TUNED_LEVEL or (not level and binding.get_host_cpu_features().get("avx512f")):
        text = _DEFINITION.sub(rf'\1 "tune-cpu"="{_TUNED_FOR}" {{', text)
    module = binding.parse_assembly(text)
    module.verify()
    builder = binding.create_pass_builder(target, binding.create_pipeline_tuning_options())
    passes = binding.create_new_module_pass_manager()
    # Kernels are vectors and unrolled as they are written, so these few do what is there to be done; LLVM's own list of passes
    # takes fifteen times as long, and its code is not faster.
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    passes.run(module, builder)
    return module


@cache
def _open_target(level: str = "") -> Any:
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    # Vectors of AVX-512 are wanted if the code has them.
    features = "-prefer-256-bit" if level else f"{binding.get_host_cpu_features().flatten()},-prefer-256-bit"
    # Code generation of level 1: from level 2 on instructions are put into another order after registers are chosen, which mixes up
    # the order in which weights are read. A product of one row, which waits for these, took 1.5 times as long.
    return binding.Target.from_default_triple().create_target_machine(
        cpu=level or binding.get_host_cpu_name(), features=features, opt=1, reloc="pic", codemodel="default", jit=True
    )


def write_message(stream: Any, content: str | bytes | RuntimeError) -> None:
    """Writes a message."""
    unwritten = memoryview(pickle.dumps(content))
    # A stream without buffer may take less than it is given.
    while unwritten:
        unwritten = unwritten[stream.write(unwritten) :]
    stream.flush()


def serve(requests: IO[bytes], answers: Any) -> None:
    """Answers requests until one is empty or there are no more."""
    _open_target()
    with suppress(EOFError):
        while text := pickle.load(requests):
            try:
                write_message(answers, translate(text))
            except RuntimeError as error:
                write_message(answers, error)


if __name__ == "__main__":
    # The folder of llvmlite; nothing else is needed beside the standard library.
    sys.path.append(sys.argv[1])
    serve(sys.stdin.buffer, sys.stdout.buffer)
