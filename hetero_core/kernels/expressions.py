"""Regular expressions in the syntax of RE2, which ONNX prescribes: matching takes time linear in the text, without the interpreter lock.

The engine is the package google-re2, an extra. Python's own `re` has another syntax, and its time may double with each character, in
which no other thread runs.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

_EXTRA = "needs google-re2, which is not installed; pip install hetero-core[text]"


def compile_match(pattern: str) -> Callable[[str], bool]:
    """Returns a function that says whether a pattern matches a whole text.

    Raises: ValueError with the reason, for a pattern that RE2 refuses and where google-re2 is not installed.
    """
    expression = _compile(pattern, takes_longest=False)
    return lambda text: expression.fullmatch(_encode(text)) is not None


def compile_search(pattern: str) -> Callable[[str], list[tuple[int, int]]]:
    """Returns a function that lists the matches of a pattern in a text as ranges of characters; of several alternatives the longest
    matches.

    Raises: as `compile_match`.
    """
    expression = _compile(pattern, takes_longest=True)

    def search(text: str) -> list[tuple[int, int]]:
        encoded = _encode(text)
        # An empty match may lie between the bytes of one letter.
        spans = [span for span in (match.span() for match in expression.finditer(encoded)) if span[0] < span[1]]
        if len(encoded) == len(text):
            return spans
        index_of_place = {place: index for index, place in enumerate(_find_letters(encoded))}
        return [(index_of_place[begin], index_of_place[end]) for begin, end in spans]

    return search


def _compile(pattern: Any, *, takes_longest: bool) -> Any:
    if not isinstance(pattern, str):
        raise ValueError(f"has the expression {pattern!r:.100}; expected a text")  # noqa: TRY004  # a reason of refusal, as the others
    if find_spec("re2") is None:
        raise ValueError(_EXTRA)
    import re2  # an extra, and a library of its own

    options = re2.Options()
    options.longest_match = takes_longest
    # It is said in the reason of the refusal, not on the error output.
    options.log_errors = False
    try:
        return re2.compile(_encode(pattern), options)
    except re2.error as error:
        reason = error.args[0].decode("utf-8", "replace") if error.args and isinstance(error.args[0], bytes) else str(error)
        raise ValueError(f"has the expression {pattern!r:.100}, which is none of RE2's: {reason}") from error


def _encode(text: str) -> bytes:
    # Half of a pair of surrogates is no text, and no reason for an error about Unicode.
    return text.encode("utf-8", "surrogatepass")


def _find_letters(encoded: bytes) -> list[int]:
    """Returns where each letter of a text begins in its bytes, and its end."""
    return [place for place, byte in enumerate(encoded) if byte & 0xC0 != 0x80] + [len(encoded)]
