"""Ray Data and Ray Serve over the three nodes: answers equal the formula, and stay with their files and rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from hetero_ray import predict

from hetero_core.errors import InputShapeError

# Ray Data warns of its own settings.
pytestmark = pytest.mark.filterwarnings("ignore:::ray\\..*")

MODEL = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["": 17]> g (float[n,3] x) => (float[n,3] y) { h = Exp (x) y = Neg (h) }'
)
NO_ROWS = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[n,3] x) => (int64[2] s) { s = Shape (x) }')


def draw(rows: int, seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal((rows, 3), np.float32)


def require_right(answer: Any, x: np.ndarray[Any, Any]) -> None:
    np.testing.assert_allclose(np.asarray(answer), -np.exp(x.astype(np.float64)), rtol=1e-5)


@pytest.fixture
def data(cluster: Any) -> Any:
    return pytest.importorskip("ray.data")


def test_each_file_of_a_folder_is_a_run(data: Any, tmp_path: Path) -> None:
    arrays = {f"{rows}.npz": draw(rows, rows) for rows in (1, 4, 2)} | {"only.npy": draw(5, 9)}
    for name, x in arrays.items():
        if name.endswith("npz"):
            np.savez(tmp_path / name, x=x)
        else:
            np.save(tmp_path / name, x)
    (tmp_path / "notes.txt").write_text("no array")
    answers = {Path(row["path"]).name: row["y"] for row in predict(tmp_path, MODEL, "CPU", actors=1).take_all()}
    assert set(answers) == set(arrays)
    for name, x in arrays.items():
        require_right(answers[name], x)


def test_file_that_is_no_array_is_named(data: Any, tmp_path: Path) -> None:
    (tmp_path / "broken.npy").write_bytes(b"\x93NUMPY of another kind")
    with pytest.raises(Exception, match="broken.npy is no array of NumPy"):
        predict(tmp_path, MODEL, actors=1).take_all()


def test_rows_keep_their_other_columns(data: Any) -> None:
    x = draw(50, 3)
    rows = data.from_items([{"x": value, "label": index} for index, value in enumerate(x)])
    answers = predict(rows, MODEL.SerializeToString(), "CPU", batch_size=7, actors=2).take_all()
    assert sorted(row["label"] for row in answers) == list(range(50))
    for row in answers:
        require_right(row["y"], x[row["label"]])


def test_output_without_a_row_for_each_is_an_error(data: Any) -> None:
    rows = data.from_items([{"x": value} for value in draw(5, 4)])
    with pytest.raises(Exception, match=r"output 's' has shape \(2,\) for a batch of 5 rows"):
        predict(rows, NO_ROWS, actors=1, batch_size=5).take_all()


@pytest.fixture
def serve(cluster: Any) -> Iterator[Any]:
    serve = pytest.importorskip("ray.serve")
    serve.start(http_options={"port": 0})
    yield serve
    serve.shutdown()


def test_served_requests_form_batches_without_wrong_requests(serve: Any) -> None:
    from hetero_ray.serving import HeteroDeployment

    config = {"max_batch_size": 8, "batch_wait_timeout_s": 0.2}
    deployment = HeteroDeployment.options(user_config=config, ray_actor_options={"num_cpus": 0})
    handle = serve.run(deployment.bind(MODEL.SerializeToString(), "CPU"), route_prefix=None)
    x = draw(20, 5)
    answers = [handle.infer.remote({"x": row}) for row in x]
    wrong = handle.infer.remote({"x": np.zeros(4, np.float32)})
    for row, answer in zip(x, answers, strict=True):
        require_right(answer.result(timeout_s=60)["y"], row)
    with pytest.raises(InputShapeError):
        wrong.result(timeout_s=60)
