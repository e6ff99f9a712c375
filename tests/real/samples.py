"""Sample inputs for the packages: pages with text, sound with synthetic speech, files of many kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

LINES = ("Invoice 2026-0417", "Total amount: 1,284.50 EUR", "Delivery within ten days", "Thank you for your order!")
RATE = 16000


def draw_page(*, lines: int = len(LINES), turned: bool = False) -> Any:
    """Returns a page with lines of text, uint8 (height, width, 3); upside down if `turned`."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (640, 60 + 70 * lines), "white")
    pen = ImageDraw.Draw(image)
    for index, line in enumerate(LINES[:lines]):
        pen.text((40, 35 + 70 * index), line, fill="black", font=ImageFont.load_default(size=30 + 4 * (index % 2)))
    return np.asarray(image.rotate(180) if turned else image).copy()


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


def list_files(root: Path) -> list[Path]:
    """Returns files of this repository: at most two of each extension, sorted by name."""
    count: dict[str, int] = {}
    chosen = []
    folders = ("hetero_core", "docs", "plugins", "tests/core")
    for path in sorted(each for folder in folders for each in (root / folder).rglob("*") if each.is_file()):
        if "__pycache__" in path.parts or count.get(path.suffix, 0) >= 2:
            continue
        count[path.suffix] = count.get(path.suffix, 0) + 1
        chosen.append(path)
    return chosen
