"""A short fuzzing run with a fixed seed; `nox -s fuzz` is the long run."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

FUZZ = Path(__file__).parents[1] / "fuzz"


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Returns a function that imports a file of tests/fuzz by its name, as a script there does."""
    import importlib

    monkeypatch.syspath_prepend(str(FUZZ))
    yield importlib.import_module
    for name in ("check", "mutate_blobs", "mutate_protos", "run", "seeds"):
        sys.modules.pop(name, None)


def test_mutated_models_blobs_and_entries_give_clean_answers() -> None:
    command = [sys.executable, str(FUZZ / "run.py"), "--seed", "0", "--cases", "40", "--seconds", "60"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    counts = ended.stdout.splitlines()[0]
    # Some cases are refused and some pass, so the mutations reach beyond the first check.
    for outcome in ("model refused", "model run", "blob refused", "blob run", "cache replaced"):
        assert outcome in counts, counts


@pytest.mark.skipif(sys.platform != "linux", reason="the clock of another process")
@pytest.mark.parametrize(
    ("body", "least_busy", "least_silent"),
    [("while True: pass", 1, 0), ("import threading; threading.Event().wait()", 0, 2)],
    ids=["computing", "waiting"],
)
def test_worker_that_hangs_in_a_case_is_killed_and_named(
    modules: Any, monkeypatch: pytest.MonkeyPatch, body: str, least_busy: int, least_silent: int
) -> None:
    run = modules("run")
    monkeypatch.setattr(run, "IDLE", 2.0 if least_silent else 100.0)
    program = f"""import json; print(json.dumps({{"case": "model:7"}}), flush=True)\n{body}"""
    case, text = run.follow([sys.executable, "-c", program], {}, Counter(), [0.0], busy=1.0)
    assert case == "model:7"
    told = re.match(r"the process ended with -9: killed, it computed for (\d+) s and was silent for (\d+) s", text)
    assert told, text
    assert int(told[1]) >= least_busy
    assert int(told[2]) >= least_silent


def test_mutations_are_the_same_for_the_same_seed(modules: Any) -> None:
    seeds, protos, blobs, check = (modules(name) for name in ("seeds", "mutate_protos", "mutate_blobs", "check"))
    model = seeds.list_seeds()["chain"]
    for mutate, content in (
        (protos.mutate_model, model),
        (protos.mutate_bytes, model),
        (blobs.mutate_blob, check.list_blobs()[2][1]),
    ):
        first, again = ([mutate(Random(seed), content) for seed in range(20)] for _ in range(2))
        assert first == again
        assert len(set(first)) > 10


def test_mutated_blobs_have_right_digests(modules: Any) -> None:
    blobs, check = modules("mutate_blobs"), modules("check")
    for _, blob in check.list_blobs():
        for seed in range(50):
            mutated = blobs.mutate_blob(Random(seed), blob)
            # The final digest covers head and header; the header has the digest of each section.
            header_size = int.from_bytes(mutated[16:24], "little")
            begin = -(-(32 + header_size) // 64) * 64
            assert hashlib.sha256(mutated[:-32][:begin]).digest() == mutated[-32:]
