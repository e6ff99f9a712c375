"""rapidocr-openvino, unmodified, as a program of its own: `python read_pages.py COUNT` prints the text, score and box of each line of COUNT
drawn pages as JSON. `test_openvino_front_end` runs it with OpenVINO and behind the front end.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import openvino
from PIL import Image, ImageDraw, ImageFont

# The package imports a name that OpenVINO had until 2025.
sys.modules.setdefault("openvino.runtime", openvino)
WORDS = ("Order", "Total", "Invoice", "Delivery", "Customer", "Account", "Net price", "Date")


def keep_float32() -> None:
    """Has OpenVINO compute in float32: by itself it computes in bfloat16 on processors with AMX, and boxes move by a pixel."""
    compile_model = openvino.Core.compile_model

    def compile_in_float32(core: Any, model: Any, device_name: str = "CPU", config: Any = None) -> Any:
        return compile_model(core, model, device_name, {"INFERENCE_PRECISION_HINT": "f32", **(config or {})})

    openvino.Core.compile_model = compile_in_float32


def draw_page(generator: np.random.Generator, *, turned: bool) -> Any:
    """Returns a page with three lines of words and numbers; upside down if `turned`."""
    image = Image.new("RGB", (640, 270), "white")
    pen = ImageDraw.Draw(image)
    for index, word in enumerate(generator.choice(WORDS, 3)):
        font = ImageFont.load_default(size=30 + 4 * (index % 2))
        pen.text((40, 35 + 70 * index), f"{word} {generator.integers(10, 99999)}", fill="black", font=font)
    return np.asarray(image.rotate(180) if turned else image).copy()


def main(count: int) -> None:
    """Prints the module of the class Core, the seconds until the first page was read, and the lines of each page."""
    from rapidocr_openvino import RapidOCR

    if openvino.Core.__module__.startswith("openvino."):
        keep_float32()
    generator = np.random.default_rng(3)
    pages = [draw_page(generator, turned=index % 5 == 4) for index in range(count)]
    begin = time.perf_counter()
    engine = RapidOCR()
    lines, first = [], 0.0
    for page in pages:
        lines.append([[text, float(score), np.asarray(box).tolist()] for box, text, score in engine(page)[0] or ()])
        first = first or time.perf_counter() - begin
    sys.stdout.write("\n" + json.dumps({"class": openvino.Core.__module__, "first": first, "pages": lines}) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
