"""Sample inputs for the packages: pages with text, sound with synthetic speech, files of many kinds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

LINES = ("Invoice 2026-0417", "Total amount: 1,284.50 EUR", "Delivery within ten days", "Thank you for your order!")
RATE = 16000


def draw_page(lines: Sequence[str] = LINES, *, turned: bool = False) -> Any:
    """Returns a page with lines of text, uint8 (height, width, 3); upside down if `turned`."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (640, 60 + 70 * len(lines)), "white")
    pen = ImageDraw.Draw(image)
    for index, line in enumerate(lines):
        pen.text((40, 35 + 70 * index), line, fill="black", font=ImageFont.load_default(size=30 + 4 * (index % 2)))
    return np.asarray(image.rotate(180) if turned else image).copy()


def draw_pages(count: int) -> Iterator[Any]:
    """Yields pages with drawn numbers and words, the first as `draw_page` makes it."""
    yield draw_page()
    generator = np.random.default_rng(3)
    words = ("Order", "Total", "Invoice", "Delivery", "Customer", "Account", "Net price", "Date")
    for index in range(1, count):
        chosen = generator.choice(words, 3)
        yield draw_page([f"{word} {generator.integers(10, 99999)}" for word in chosen], turned=index % 5 == 4)


def make_sounds(count: int) -> Iterator[tuple[Any, int]]:
    """Yields parts of the synthetic speech with noise of different strength, and their rates."""
    generator = np.random.default_rng(4)
    whole = {rate: make_sound(rate) for rate in (8000, RATE)}
    for index in range(count):
        rate = (RATE, 8000)[index % 2]
        begin = int(generator.integers(0, rate)) if index else 0
        sound = whole[rate][begin:]
        noise = generator.normal(0, 0.002 * (index % 7), sound.size)
        yield np.clip(sound + noise, -1, 1).astype(np.float32), rate


def make_sound(rate: int = RATE) -> Any:
    """Returns four seconds of silence, vowels and noise, float32 from -1 to 1.

    A vowel is a pulse train with the pitch of a voice, filtered by resonances at the vowel's formants.
    Source: Fant 1960, Acoustic Theory of Speech Production.
    """
    generator = np.random.default_rng(5)
    quiet = generator.normal(0, 0.001, rate // 2)
    pieces = [quiet]
    for formants in ((730, 1090, 2440), (270, 2290, 3010), (570, 840, 2410), (530, 1840, 2480)):
        pieces += [_make_vowel(formants, rate, rate * 2 // 5), generator.normal(0, 0.02, rate // 12)]
    pieces += [quiet, generator.normal(0, 0.1, rate // 2)]
    return np.clip(np.concatenate(pieces), -1, 1).astype(np.float32)


def _make_vowel(formants: tuple[int, ...], rate: int, count: int) -> Any:
    moments = np.arange(count) / rate
    phase = np.cumsum(120 + 15 * np.sin(2 * np.pi * 3 * moments)) / rate
    sound = np.diff(np.floor(phase), prepend=0.0)
    for formant in formants:
        radius = np.exp(-np.pi * 80 / rate)
        first, second = 2 * radius * np.cos(2 * np.pi * formant / rate), -(radius**2)
        filtered = np.zeros(count)
        for index in range(count):
            filtered[index] = sound[index] + first * filtered[index - 1] + second * filtered[index - 2]
        sound = filtered
    return 0.4 * np.hanning(count) ** 0.3 * sound / np.abs(sound).max()


def list_files(root: Path, folder: Path, count: int) -> list[Path]:
    """Returns files: at most two of each extension in this repository, sorted by name, then files of drawn text and bytes in `folder`."""
    number: dict[str, int] = {}
    chosen = []
    for path in sorted(each for part in ("hetero_core", "docs", "plugins", "tests/core") for each in (root / part).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and number.get(path.suffix, 0) < 2:
            number[path.suffix] = number.get(path.suffix, 0) + 1
            chosen.append(path)
    generator = np.random.default_rng(2)
    for index in range(len(chosen), count):
        path = folder / f"{index}"
        lines = [f"{word} = {value}" for word, value in zip("abcdefgh", generator.integers(0, 1000, 8), strict=True)]
        path.write_bytes(generator.bytes(500) if index % 2 else "\n".join(lines).encode() * 5)
        chosen.append(path)
    return chosen[:count]
