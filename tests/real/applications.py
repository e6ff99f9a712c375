"""The applications as programs of their own, unmodified: `python applications.py NAME COUNT FOLDER` prints the results for COUNT samples
as JSON; FOLDER has the models that `models.py` writes.

`test_applications` runs it with ONNX Runtime and behind the front end.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from models import open_classifier, open_generators
from samples import draw_pages, list_files, make_sounds

ROOT = Path(__file__).parents[2]


def read_pages(count: int, folder: Path) -> Iterator[Any]:
    """Yields the texts, scores and boxes that rapidocr-onnxruntime reads on each page."""
    from rapidocr_onnxruntime import RapidOCR

    engine = RapidOCR(use_cls=True)
    for page in draw_pages(count):
        yield [[text, float(score), np.asarray(box).tolist()] for box, text, score in engine(page)[0] or ()]


def name_kinds(count: int, folder: Path) -> Iterator[Any]:
    """Yields magika's type and score of files of this repository, and of files of drawn bytes."""
    from magika import Magika

    reader = Magika()
    with tempfile.TemporaryDirectory() as own:
        for path in list_files(ROOT, Path(own), count):
            result = reader.identify_path(path)
            yield [str(result.output.label), float(result.score)]


def find_speech(count: int, folder: Path) -> Iterator[Any]:
    """Yields the intervals of speech by silero-vad in each sound."""
    import silero_vad
    import torch

    torch.set_num_threads(1)
    model = silero_vad.load_silero_vad(onnx=True)
    for sound, rate in make_sounds(count):
        found = silero_vad.get_speech_timestamps(torch.from_numpy(sound), model, sampling_rate=rate, threshold=0.3)
        yield [[interval["start"], interval["end"]] for interval in found]


def find_parts(count: int, folder: Path) -> Iterator[Any]:
    """Yields the boxes that nudenet finds on pages of noise, and a part of its network's output for two drawn images."""
    from nudenet import NudeDetector

    detector, generator = NudeDetector(), np.random.default_rng(1)
    session = detector.onnx_session
    for page in draw_pages(count):
        yield detector.detect(np.clip(page + generator.integers(0, 200, page.shape), 0, 255).astype(np.uint8))
        images = generator.random((2, 3, 320, 320), np.float32)
        yield session.run(None, {session.get_inputs()[0].name: images})[0].ravel()[::97].tolist()


def prepare_sounds(count: int, folder: Path) -> Iterator[Any]:
    """Yields the outputs of the graphs that onnx-asr has for its recognizers: resampling, spectra and their lengths.

    Graphs with STFT are left out: ONNX Runtime 1.32 misses the spectrum of float64 by 1e-4, CPU by 5e-7.
    """
    import onnx_asr
    import onnxruntime

    graphs = Path(onnx_asr.__file__).parent / "preprocessors" / "data"
    for path in sorted([*graphs.glob("*_conv.onnx"), *graphs.glob("resample_*.onnx")]):
        session = onnxruntime.InferenceSession(path)
        for sound, _ in make_sounds(count):
            values = {"tensor(float)": np.stack([sound[:20000], sound[5000:25000]]), "tensor(int64)": np.array([20000, 15000])}
            outputs = session.run(None, {spec.name: values[spec.type] for spec in session.get_inputs()})
            yield [path.name, *([list(each.shape), each.ravel()[::101].tolist()] for each in outputs)]


def generate_tokens(count: int, folder: Path) -> Iterator[Any]:
    """Yields the tokens that optimum's models of random weights generate: a decoder with a cache, and an encoder with a decoder."""
    import torch

    for model, longest in open_generators(folder):
        for index in range(count):
            torch.manual_seed(index)
            tokens = torch.randint(5, 90, (2, 4 + index))
            yield model.generate(tokens, max_new_tokens=longest, do_sample=False, attention_mask=torch.ones_like(tokens)).tolist()


def score_texts(count: int, folder: Path) -> Iterator[Any]:
    """Yields the scores of optimum's classifier of random weights."""
    import torch

    model = open_classifier(folder)
    for index in range(count):
        torch.manual_seed(index)
        tokens = torch.randint(5, 90, (1 + index % 3, 3 + index))
        yield model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits.tolist()


APPLICATIONS = {
    "rapidocr": read_pages,
    "magika": name_kinds,
    "silero": find_speech,
    "nudenet": find_parts,
    "onnx-asr": prepare_sounds,
    "tokens": generate_tokens,
    "scores": score_texts,
}


def main(name: str, count: int, folder: Path) -> None:
    """Prints the module of the session class, the seconds until the first result, and all results."""
    began = time.perf_counter()
    results: Iterable[Any] = APPLICATIONS[name](count, folder)
    first = next(iter(results))
    seconds = time.perf_counter() - began
    listed = [first, *results]
    import onnxruntime

    document = {"class": onnxruntime.InferenceSession.__module__, "first": seconds, "results": listed}
    sys.stdout.write("\n" + json.dumps(document) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
