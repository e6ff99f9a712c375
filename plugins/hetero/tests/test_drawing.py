"""HETERO_DUMP_GRAPH_DOT: the file, read back as edges and clusters."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from hetero_core import Core, Network

TEXT = "two_parts (float[2] x) => (float[2] y) { [first] a = Abs (x) [second] y = Neg (a) }"
SPLIT = {"TEMPLATE_REFUSED_OPERATORS": "Neg"}


@pytest.mark.parametrize("is_imported", [False, True])
def test_plan_is_drawn_if_the_key_is_set(
    core: Core, read: Callable[..., Network], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_imported: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    network = core.load_network(read(TEXT), "HETERO:TEMPLATE,CPU", {**SPLIT, "HETERO_DUMP_GRAPH_DOT": not is_imported})
    if is_imported:
        assert list(tmp_path.iterdir()) == []
        network.export_network(tmp_path / "blob")
        core.import_network(tmp_path / "blob", config={"HETERO_DUMP_GRAPH_DOT": "YES"})
    drawing = (tmp_path / "hetero_subgraphs_two_parts.dot").read_text()
    clusters = re.findall(r'label="subgraph (\d) on (\w+)";\n    "(\w+)"', drawing)
    assert clusters == [("0", "TEMPLATE", "first"), ("1", "CPU", "second")]
    assert re.search(r'"first" -> "second" .*label="a \(8 bytes\)"', drawing)


def test_name_of_a_network_stays_in_the_folder(
    core: Core, read: Callable[..., Network], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    from dataclasses import replace

    network = replace(read(TEXT), name="../a b/c")
    core.load_network(network, "HETERO:CPU", {"HETERO_DUMP_GRAPH_DOT": True})
    assert [path.name for path in tmp_path.iterdir()] == ["hetero_subgraphs_.._a_b_c.dot"]
