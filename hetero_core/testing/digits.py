"""Noisy pictures of digits, and a network that recognizes them. Nothing is trained: both are computed from the typefaces below.

The network finds the glyph g and the position with the least distance to the picture x. Since |x - g|^2 = |x|^2 - 2 (x * g - |g|^2 / 2),
they have the largest x * g - |g|^2 / 2, and a convolution computes x * g for all positions.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser

TYPEFACES = """
.###.  ..#..  .###.  .###.  ...#.  #####  .###.  #####  .###.  .###.
#...#  .##..  #...#  #...#  ..##.  #....  #...#  ....#  #...#  #...#
#...#  ..#..  ....#  ....#  .#.#.  ####.  #....  ...#.  #...#  #...#
#...#  ..#..  ...#.  ..##.  #..#.  ....#  ####.  ..#..  .###.  .####
#...#  ..#..  ..#..  ....#  #####  ....#  #...#  ..#..  #...#  ....#
#...#  ..#..  .#...  #...#  ...#.  #...#  #...#  ..#..  #...#  #...#
.###.  .###.  #####  .###.  ...#.  .###.  .###.  ..#..  .###.  .###.

#####  ....#  #####  #####  #...#  #####  #####  #####  #####  #####
#...#  ....#  ....#  ....#  #...#  #....  #....  ....#  #...#  #...#
#...#  ....#  ....#  ....#  #...#  #....  #....  ....#  #...#  #...#
#...#  ....#  #####  #####  #####  #####  #####  ....#  #####  #####
#...#  ....#  #....  ....#  ....#  ....#  #...#  ....#  #...#  ....#
#...#  ....#  #....  ....#  ....#  ....#  #...#  ....#  #...#  ....#
#####  ....#  #####  #####  ....#  #####  #####  ....#  #####  #####
"""
"""The glyphs of 0 to 9, round and square."""
_ROWS = [[[float(mark == "#") for mark in glyph] for glyph in line.split()] for line in TYPEFACES.split("\n") if line]
_GLYPHS = np.reshape(_ROWS, (2, 7, 10, 5)).swapaxes(1, 2).reshape(20, 7, 5)
_NOISE = 0.2
_PAPER_LEVEL = 0.1


def draw_digits(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns pictures, float32 (count, 1, 12, 10) from 0 (paper) to 1 (ink), and their digits; the same in every call.

    A picture is a glyph at some position, with noise.
    """
    generator = np.random.default_rng(0)
    choice = generator.permutation(np.arange(count) % 20)
    places = generator.integers(6, size=(count, 2))
    clean = [np.pad(_GLYPHS[index], [(top, 5 - top), (left, 5 - left)]) for index, (top, left) in zip(choice, places, strict=True)]
    noisy = np.stack(clean) + generator.normal(0, _NOISE, (count, 12, 10))
    return noisy.clip(0, 1).astype(np.float32)[:, None], choice % 10


def make_digits_model() -> onnx.ModelProto:
    """Returns the network `small_models/digits.onnxtxt` with its constants."""
    model = onnx.parser.parse_model((Path(__file__).parent / "small_models" / "digits.onnxtxt").read_text(encoding="utf-8"))
    glyphs = _GLYPHS * (1 - _PAPER_LEVEL)  # as the network sees them
    constants = {
        "paper_level": _PAPER_LEVEL,
        "round_glyphs": glyphs[:10, None],
        "square_glyphs": glyphs[10:, None],
        "half_norms": np.square(glyphs).sum((1, 2)) / 2,
        "sharpness": 8,
        "digit_of_glyph": np.tile(np.eye(10), (2, 1)),
    }
    for name, constant in constants.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(constant, np.float32), name))
    onnx.checker.check_model(model, full_check=True)
    return model
