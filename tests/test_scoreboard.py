"""The scoreboard's table: what is in it was measured, sums are right, what was not run is listed with the reason."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onceward.core.operations.comparison import Record, Verdict, compare
from onceward.testing.pipeline.endpoints import Addresses

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def table() -> Any:
    """benchmarks/ is no installed package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        yield importlib.import_module("benchmarks.scoreboard.table")
    for name in [name for name in sys.modules if name.startswith("benchmarks")]:
        del sys.modules[name]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_line_sums_up_all_runs_of_an_output_and_says_how_many_were_not_exact(table: Any) -> None:
    about = table.About("both", "Both", "defaults", {"Guide": "https://example.org"})
    fine = table.Output("table out", 600)
    bad = replace(fine, duplicated=40, torn=3)
    runs = [
        table.Run("both", "kill-when-visible", 1, 2, (fine, bad), blocked=0.4, start=7.5, recoveries=(8.0, 9.0)),
        table.Run("both", "kill-kafka", 1, 1, (fine, fine), blocked=1.2, recoveries=(30.0,)),
        table.Run("both", "kill-driver", 1, 1, (fine, replace(bad, missing=2))),
    ]
    runs = [replace(run, outputs=(run.outputs[0], replace(run.outputs[1], title="topic out"))) for run in runs]
    exact, torn = (line.cells() for line in table.lines(runs, [about]))
    assert exact == ["Both", "table out", "3", "4", "0", "0", "0", "0", "", "0", "1.2", "7.5", "8.5 (9.0), 1 over 90"]
    assert torn == ["Both", "topic out", "3", "4", "2", "80", "0", "6", "", "2", "1.2", "7.5", "8.5 (9.0), 1 over 90"]


def test_what_was_not_measured_is_not_in_the_table_and_is_listed_with_the_reason(table: Any) -> None:
    abouts = [table.About(name, name.title(), "defaults") for name in ("one", "two", "three")]
    runs = [table.Run("one", "clean", 1, 0, (table.Output("topic out", 600),), date="2026-11-22")]
    text = table.page(runs, abouts, {"two": "it has no license", "Another": "nobody has it"})
    rows = [cells(line) for line in text.splitlines() if line.startswith("| One")]
    assert rows[0][:4] == ["One", "topic out", "1", "0"]
    assert not [line for line in text.splitlines() if line.startswith(("| Two", "| Three", "| Another"))]
    for line in ("- **Two**: it has no license", "- **Another**: nobody has it", "- **Three**: not run yet"):
        assert line in text


def test_runs_survive_being_recorded(table: Any, tmp_path: Path) -> None:
    run = table.Run("one", "clean", 1, 0, (table.Output("topic out", 600, missing=1),), recoveries=(1.5,), went_back=2)
    table.write_runs(tmp_path / "runs.jsonl", [run, run])
    assert table.read_runs(tmp_path / "runs.jsonl") == [run, run]
    assert table.read_runs(tmp_path / "none.jsonl") == []


def test_the_page_is_what_the_recorded_runs_say(table: Any) -> None:
    recorded = table.read_runs(ROOT / "benchmarks" / "scoreboard" / "results.jsonl")
    page = (ROOT / "docs" / "scoreboard.md").read_text()
    assert f"{len(recorded)} runs with {sum(run.faults for run in recorded)} faults" in page
    assert len({(run.contestant, run.fault, run.seed) for run in recorded}) == len(recorded)


def test_a_folder_is_read_as_each_reader_does_and_files_that_nobody_can_read_are_torn(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        files = importlib.import_module("benchmarks.scoreboard.files")
    out, addresses = tmp_path / "out", Addresses(tmp_path)
    spark, delta = out / "_spark_metadata", out / "_delta_log"
    for folder in (out, spark, delta):
        folder.mkdir()
    for number in range(4):
        pq.write_table(pa.table({"id": [number]}), out / f"part-{number}.parquet")
    (out / "part-4.parquet").touch()
    added = [json.dumps({"path": (out / f"part-{number}.parquet").as_uri(), "action": "add"}) for number in range(3)]
    (spark / "0").write_text("v1\n" + added[0])
    (spark / "1.compact").write_text("v1\n" + "\n".join(added[:2]))
    (spark / "2").write_text("v1\n" + added[2])
    (delta / "0.json").write_text(json.dumps({"add": {"path": "part-0.parquet"}}))
    actions = [{"add": {"path": "part-3.parquet"}}, {"remove": {"path": "part-0.parquet"}}, {"txn": {"version": 1}}]
    (delta / "1.json").write_text("\n".join(map(json.dumps, actions)))

    def ids(listing: Any) -> list[int]:
        return [record.row["id"] for record in files.Files("out", listing).read(addresses)]

    assert ids(files.files_that_are_visible) == [0, 1, 2, 3]
    assert ids(files.files_of_spark) == [0, 1, 2]
    assert ids(files.files_of_delta) == [3]
    assert files.Files("out", files.files_that_are_visible).torn(addresses) == [out / "part-4.parquet"]
    assert files.Files("out", files.files_of_spark).torn(addresses) == []


def test_rows_that_are_missing_at_the_end_alone_are_late_and_not_lost() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        is_late = importlib.import_module("benchmarks.scoreboard.__main__").is_late
    rows = [{"id": number} for number in range(4)]
    sources = {str(number): [f"orders-{number % 2}@{number // 2}"] for number in range(4)}

    def verdict(*found: int) -> Verdict:
        records = [Record(rows[number], f"out@{number}") for number in found]
        return Verdict((compare("out", rows, records, "id"),), (), "id", sources)

    assert is_late(verdict(0, 1))
    assert is_late(verdict(0, 2))
    assert not is_late(verdict(0, 3))
    assert not is_late(verdict(0, 1, 2, 3, 3))
