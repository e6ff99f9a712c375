"""The digest of a section: SHA-256 over the SHA-256 of each of its pieces, so that several processors share the work.

Imports nothing but the standard library.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from hetero_core.devices.processors import count_processors

PIECE_BYTES = 1 << 20
"""Part of the format: another size gives another digest."""
# Nearer to the memory's pace than to the processors' by then.
_MOST_THREADS = 8
_FEWEST_PIECES = 2
"""For each thread; starting one takes as long as the digest of some 100 KB."""


def digest_sections(sections: Mapping[str, memoryview]) -> dict[str, bytes]:
    """Returns the digest of each section, bytes in one dimension, computed by as many threads as there are processors for this process."""
    pieces = [
        (name, section[begin : begin + PIECE_BYTES])
        for name, section in sections.items()
        for begin in range(0, section.nbytes, PIECE_BYTES)
    ]
    digests = _digest_pieces([piece for _, piece in pieces])
    import hashlib  # OpenSSL, which a load of a kept file does without

    joined = {name: hashlib.sha256() for name in sections}
    for (name, _), digest in zip(pieces, digests, strict=True):
        joined[name].update(digest)
    return {name: digest.digest() for name, digest in joined.items()}


def _digest_pieces(pieces: list[memoryview]) -> list[bytes]:
    import hashlib  # as above

    digests = [b""] * len(pieces)
    indices = iter(range(len(pieces)))

    def work() -> None:
        # One iterator of integers, whose next is one step of the interpreter: each piece goes to one thread.
        for index in indices:
            digests[index] = hashlib.sha256(pieces[index]).digest()

    helpers = []
    for _ in range(min(count_processors(), _MOST_THREADS, len(pieces) // _FEWEST_PIECES) - 1):
        helper = threading.Thread(target=work, name="hetero-digest", daemon=True)
        try:
            helper.start()
        except RuntimeError:  # the system has no more threads for us
            break
        helpers.append(helper)
    work()
    for helper in helpers:
        helper.join()
    return digests
