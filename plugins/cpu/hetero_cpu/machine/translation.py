"""LLVM: the text of a module to an object file for the processor at hand. Run as a program, it does so for another process.

Rule: imports nothing of this project, since as a program it is run by its path. LLVM takes 50 MB when it is loaded and leaves 100
more to the allocator, which a process that runs networks is spared if a child compiles.

A message is the count of its bytes, eight bytes, and these. A request is a message with the text of a module; an empty one ends the
program. An answer is one byte, b"+" or b"-", and a message with an object file or the text of an error. The first answer, which is
empty, says that LLVM is there.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from typing import IO, Any

_COUNT_BYTES = 8
_MADE, _FAILED = b"+", b"-"
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


def write_message(stream: IO[bytes], content: bytes, kind: bytes = b"") -> None:
    """Writes bytes with their kind and their count before them."""
    unwritten = memoryview(kind + len(content).to_bytes(_COUNT_BYTES, "little") + content)
    # A stream without buffer may take less than it is given.
    while unwritten:
        unwritten = unwritten[stream.write(unwritten) :]
    stream.flush()


def read_message(stream: IO[bytes]) -> bytes:
    """Returns the bytes of one message. Raises: EOFError if the other side has ended."""
    return _read_exactly(stream, int.from_bytes(_read_exactly(stream, _COUNT_BYTES), "little"))


def read_answer(stream: IO[bytes]) -> bytes:
    """Returns the object file. Raises: EOFError if the child has ended; RuntimeError with its error."""
    kind, content = _read_exactly(stream, 1), read_message(stream)
    if kind != _MADE:
        raise RuntimeError(content.decode())
    return content


def _read_exactly(stream: IO[bytes], count: int) -> bytes:
    pieces: list[bytes] = []
    while count and (piece := stream.read(count)):
        pieces.append(piece)
        count -= len(piece)
    if count:
        raise EOFError("the other process has ended")
    return b"".join(pieces)


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answers requests until one is empty or there are no more."""
    _open_target()
    write_message(answers, b"", _MADE)
    while text := _read_request(requests):
        try:
            image = translate(text.decode())
        except Exception as error:  # noqa: BLE001  # sent to the parent, which raises it
            write_message(answers, f"{type(error).__name__}: {error}".encode(), _FAILED)
        else:
            write_message(answers, image, _MADE)


def _read_request(requests: IO[bytes]) -> bytes:
    try:
        return read_message(requests)
    except EOFError:
        return b""


if __name__ == "__main__":
    # The folder of llvmlite; nothing else is needed beside the standard library.
    sys.path.append(sys.argv[1])
    serve(sys.stdin.buffer, sys.stdout.buffer)
