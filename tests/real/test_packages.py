"""Trained models that packages ship: the packages' own pipelines run them on a device, and each run is compared with ONNX Runtime."""

from __future__ import annotations

import importlib.metadata
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("magika", reason="magika is not installed; nox -s real installs it", exc_type=ImportError)
pytest.importorskip(
    "rapidocr_onnxruntime", reason="rapidocr-onnxruntime is not installed; nox -s real installs it", exc_type=ImportError
)
pytest.importorskip("silero_vad", reason="silero-vad is not installed; nox -s real installs it", exc_type=ImportError)

from samples import LINES, RATE, draw_page, list_files, make_sound
from sessions import PLACES, ComparedSession, OnnxRuntimeSession

from hetero_core import Core
from hetero_core.frontends.shared_core import forget_core

ROOT = Path(__file__).parents[2]
Open = Callable[..., Any]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def sessions(place: str) -> Iterator[Open]:
    """Yields a function that opens compared sessions; fails at the end if a run had a fault."""
    opened: list[ComparedSession] = []

    def open_session(package: str, path: Any) -> ComparedSession:
        opened.append(ComparedSession(str(path), place, package=package))
        return opened[-1]

    yield open_session
    for session in opened if place == "auto" else ():
        session.run_again_with_machine_code()
    faults = [fault for session in opened for fault in session.faults]
    assert not faults, f"{len(faults)} faults on {place}:\n" + "\n".join(faults[:20])
    forget_core()


def read_pages(monkeypatch: pytest.MonkeyPatch, open_session: Open | None, *, has_angles: bool) -> list[list[str]]:
    """Returns the text that rapidocr-onnxruntime reads on three pages; with ONNX Runtime alone if `open_session` is None."""
    from rapidocr_onnxruntime import RapidOCR
    from rapidocr_onnxruntime.utils import infer_engine

    if open_session is not None:
        monkeypatch.setattr(infer_engine, "InferenceSession", lambda path, **_: open_session("rapidocr-onnxruntime", path))
    engine = RapidOCR(use_cls=has_angles)
    pages = [draw_page(), draw_page(LINES[:2]), draw_page(LINES[:3], turned=has_angles)]
    return [[text for _, text, _ in engine(page)[0] or ()] for page in pages]


def test_rapidocr_reads_pages(monkeypatch: pytest.MonkeyPatch, sessions: Open) -> None:
    expected = read_pages(monkeypatch, None, has_angles=False)
    assert read_pages(monkeypatch, sessions, has_angles=False) == expected
    assert [len(page) for page in expected] == [4, 2, 3]
    assert any(line.replace(" ", "") == expected[0][0].replace(" ", "") for line in LINES)


def test_rapidocr_reads_pages_upside_down(monkeypatch: pytest.MonkeyPatch, sessions: Open) -> None:
    expected = read_pages(monkeypatch, None, has_angles=True)
    assert read_pages(monkeypatch, sessions, has_angles=True) == expected


def find_speech(open_session: Open | None, rate: int) -> Any:
    """Returns the intervals of speech by silero-vad."""
    import silero_vad
    import torch

    model = silero_vad.load_silero_vad(onnx=True)
    if open_session is not None:
        (path,) = (path for path in find_models("silero-vad", "data") if path.name == "silero_vad.onnx")
        model.session = open_session("silero-vad", path)
    sound = torch.from_numpy(make_sound(rate))
    return silero_vad.get_speech_timestamps(sound, model, sampling_rate=rate, threshold=0.3)


@pytest.mark.parametrize("rate", [8000, RATE])
def test_silero_finds_speech(sessions: Open, rate: int) -> None:
    expected = find_speech(None, rate)
    assert len(expected) > 0
    assert find_speech(sessions, rate) == expected


def find_models(package: str, folder: str) -> list[Path]:
    files = importlib.metadata.files(package) or []
    return sorted(Path(str(file.locate())) for file in files if file.suffix == ".onnx" and folder in str(file))


SIZES = {"input": (1, 576), "state": (2, 1, 128), "h": (1, 1, 128), "c": (1, 1, 128)}


@pytest.mark.parametrize("path", find_models("silero-vad", "data"), ids=lambda path: path.stem)
def test_every_model_of_silero_hears_the_same(sessions: Open, path: Path) -> None:
    session = sessions("silero-vad", path)
    sound, state = make_sound(), {name: np.zeros(size, np.float32) for name, size in SIZES.items()}
    for start in range(0, 40 * 512, 512):
        feeds = {**state, "input": sound[None, start : start + 576], "sr": np.array(RATE)}
        outputs = session.run(None, {spec.name: feeds[spec.name] for spec in session.get_inputs()})
        names = ("state",) if len(outputs) == 2 else ("h", "c")
        state.update(zip(names, outputs[1:], strict=True))


@pytest.mark.parametrize("name", ["silero_vad", "silero_vad_half", "silero_vad_16k_op15", "silero_vad_op18_ifless"])
def test_silero_with_fixed_sizes_hears_the_same_on_onnx_runtime(name: str) -> None:
    """The engine folds the Ifs of such a model, and infers wrong ranks if the sizes are fixed."""
    (path,) = (path for path in find_models("silero-vad", "data") if path.stem == name)
    feeds = {"input": make_sound()[None, :512], "state": np.zeros((2, 1, 128), np.float32), "sr": np.array(RATE)}
    with Core() as core:
        network = core.read_network(path)
        fixed = network.with_shapes({"input": (1, 512), "state": (2, 1, 128)})
        inputs = {spec.name: feeds[spec.name] for spec in network.inputs}
        expected = OnnxRuntimeSession(str(path), providers=["CPUExecutionProvider"]).run(None, inputs)
        outputs = core.load_network(fixed, "ORT").infer(inputs)
    for array, answer in zip(outputs.values(), expected, strict=True):
        np.testing.assert_allclose(array, answer, atol=1e-5)


def name_kinds(monkeypatch: pytest.MonkeyPatch, folder: Path, open_session: Open | None) -> list[str]:
    """Returns magika's file types for files of this repository."""
    import magika.magika

    if open_session is not None:
        engine = types.SimpleNamespace(
            InferenceSession=lambda path, **_: open_session("magika", path), disable_telemetry_events=lambda: None
        )
        monkeypatch.setattr(magika.magika, "rt", engine)
    reader = magika.magika.Magika()
    files = list_files(ROOT, folder, 40)
    together = [result.output.label for result in reader.identify_paths(files)]
    alone = [reader.identify_path(path).output.label for path in files[:5]]
    return [str(label) for label in (*together, *alone)]


def test_magika_names_kinds_of_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sessions: Open) -> None:
    expected = name_kinds(monkeypatch, tmp_path, None)
    assert name_kinds(monkeypatch, tmp_path, sessions) == expected
    assert {"python", "json", "css"} <= set(expected)
