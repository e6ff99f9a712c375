"""`hetero devices`: names without loading plugins, rows with reasons, metrics and configuration keys."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from hetero_core.cli.main import main
from hetero_core.devices import registry


def read_rows(text: str) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads(text)["devices"]}


def test_names_are_sorted_one_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--names"]) == 0
    names = capsys.readouterr().out.splitlines()
    assert names == sorted(names)
    assert {"CPU", "HETERO", "TEMPLATE"} <= set(names)
    assert main(["devices", "--names", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"names": names}


def test_table_has_ids_plugin_and_full_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["DEVICE", "IDS", "PLUGIN", "NAME"]
    (template,) = [row for row in rows if row.startswith("TEMPLATE")]
    assert template.split()[1:4] == ["0", "1", "hetero-template"]
    assert "TEMPLATE device 0 (NumPy" in template


def test_json_has_metrics_and_declared_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--json"]) == 0
    row = read_rows(capsys.readouterr().out)["TEMPLATE"]
    assert (row["distribution"], row["ids"], row["reason"]) == ("hetero-template", ["0", "1"], None)
    assert row["metrics"]["DEVICE_ARCHITECTURE"] == "kernels toolkit"
    assert row["metrics"]["RANGE_FOR_ASYNC_INFER_REQUESTS"] == [1, 1, 1]
    assert row["config_keys"]["PERF_COUNT"]["type"] == "bool"
    assert row["config_keys"]["PERF_COUNT"]["default"] is False
    assert row["config_keys"]["TEMPLATE_REFUSED_OPERATORS"]["type"] == "tuple"


def test_verbose_lists_metrics_and_keys_below_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "-v"]) == 0
    text = capsys.readouterr().out
    assert "\nHETERO\n  METRIC" in text
    assert "HETERO_SUBGRAPH_POLICY" in text
    assert "LARGEST_FIRST|LEVELS|FEWEST|LITERAL = LARGEST_FIRST" in text


def test_metric_is_read_for_every_id(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--metric", "full_device_name", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["metric"] == "FULL_DEVICE_NAME"
    assert {"TEMPLATE.0", "TEMPLATE.1", "CPU", "HETERO"} <= {row["name"] for row in answer["devices"]}
    # A plugin may be installed without its engine or its card; its row then has a reason instead of a value.
    assert all(row["value"] for row in answer["devices"] if row["name"].partition(".")[0] in ("TEMPLATE", "CPU", "HETERO"))
    assert all(row.get("value") or row["reason"] for row in answer["devices"])


def test_metric_that_no_device_has_is_an_error_with_near_misses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--metric", "FULL_DEVICE_NAMES"]) == 2
    assert "did you mean 'FULL_DEVICE_NAME'" in capsys.readouterr().err


def test_plugin_that_cannot_load_is_a_row_and_hides_no_other(
    plant: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    plant("BROKEN", "raise ImportError('libplanted.so.1 is missing')\n")
    assert main(["devices"]) == 0
    table = capsys.readouterr()
    assert table.err == ""
    (row,) = [line for line in table.out.splitlines() if line.startswith("BROKEN")]
    assert "planted-broken 1.5" in row
    assert "CANNOT BE USED" in row
    assert "libplanted.so.1 is missing" in row
    assert main(["devices", "--json"]) == 0
    rows = read_rows(capsys.readouterr().out)
    assert "libplanted.so.1 is missing" in rows["BROKEN"]["reason"]
    assert rows["CPU"]["reason"] is None
    assert main(["devices", "--names"]) == 0
    assert "BROKEN" in capsys.readouterr().out.split()
    assert main(["devices", "--metric", "DEVICE_ARCHITECTURE"]) == 0
    assert "libplanted.so.1 is missing" in capsys.readouterr().out


def test_plugin_whose_metric_fails_is_a_row_with_the_reason(
    plant: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    plant(
        "MOODY",
        "from hetero_core import hookimpl\n"
        "@hookimpl\ndef metrics(): return {'TEMPERATURE': lambda: 1 / 0}\n"
        "@hookimpl\ndef query_network(): return None\n"
        "@hookimpl\ndef load_network(): return None\n",
    )
    assert main(["devices", "--json"]) == 0
    rows = read_rows(capsys.readouterr().out)
    assert rows["MOODY"]["reason"] == "ZeroDivisionError: division by zero"
    assert rows["CPU"]["metrics"]["IMPORT_EXPORT_SUPPORT"] is True
    assert main(["devices", "-v"]) == 0


def test_no_device_is_reported_with_the_cure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(registry, "read_announcements", lambda *_: {})
    assert main(["devices"]) == 0
    first, _, missing = capsys.readouterr().out.splitlines()
    assert first == "no device is installed; install one, as in: pip install hetero-cpu"
    assert missing.startswith("not installed: AUTO (hetero-auto), BATCH (hetero-batch), CPU (hetero-cpu), ")


def test_plugins_of_the_environment_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HETERO_PLUGINS", "CPU")
    assert main(["devices"]) == 0
    text = capsys.readouterr().out
    assert "TEMPLATE" not in text
    assert text.splitlines()[-1] == "HETERO_PLUGINS=CPU leaves out all other plugins"


def test_directory_shows_installed_versions_and_hardware(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hetero_core.cli.devices.find_hardware", lambda: frozenset({"nvidia"}))
    assert main(["devices", "--known", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["known"]}
    assert (rows["GPU"]["requirement"], rows["GPU"]["hardware_here"]) == ("hetero-cupy", ["an NVIDIA card"])
    assert (rows["TORCH"]["requirement"], rows["TORCH"]["hardware_here"]) == ("hetero-torch[torch]", [])
    assert rows["TEMPLATE"]["installed"] == rows["TEMPLATE"]["version"]
    assert main(["devices", "--known"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split("  ")[0] == "DEVICE"
    assert [line.split()[0] for line in lines] == sorted(rows)
