"""`onceward verify` of targets that need no service: whatever is changed by hand is found and named."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import sqlite3
import uuid
from contextlib import closing
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from onceward import FileSink, SqlAlchemySink, operations
from onceward.cli.command_advice import message
from onceward.cli.main import app
from onceward.connectors.database.connector import PostgresConnector
from onceward.connectors.database.postgres.reread import PostgresTable
from onceward.connectors.database.reread import OtherTable
from onceward.connectors.files import text
from onceward.core.contract.proof import NUMBER, UUID, Reread, RereadPiece
from onceward.core.contract.refusals import Refusal, RefusedError
from onceward.core.errors import ConfigurationError, SchemaError
from onceward.core.kit.crash_points import hooked
from onceward.core.operations import audit as audit_module
from onceward.core.operations.audit import Expected
from onceward.core.operations.comparison import Record, compare
from onceward.core.operations.row_comparison import compare_places, map_rows, records, shown
from onceward.core.operations.upserts import NewestRows

from .sink_kit import Crash
from .verify_kit import EPOCHS, FORMATS, ROWS, SUBTASKS, FileJob, Job, batch_of, die_in_commit, wrong

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from onceward.core.contract.proof import ProvenEpoch
    from onceward.core.operations.comparison import Comparison


def rewritten(path: Path, change: Callable[[list[Any]], list[Any]]) -> None:
    """A file with its rows changed, as somebody does it by hand."""
    if path.suffix in {".csv", ".jsonl"}:
        lines = path.read_text().splitlines(keepends=True)
        head = int(path.suffix == ".csv")
        path.write_text("".join([*lines[:head], *change(lines[head:])]))
        return
    parquet = path.suffix == ".parquet"
    table = pyarrow.parquet.ParquetFile(path).read() if parquet else pa.ipc.open_file(path.read_bytes()).read_all()
    table = pa.Table.from_pylist(change(table.to_pylist()), table.schema)
    if parquet:
        pyarrow.parquet.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table)


def altered(row: Any) -> Any:
    return row.replace("true", "false") if isinstance(row, str) else {**row, "yes": False}


CHANGES: dict[str, Callable[[list[Any]], list[Any]]] = {
    "deleted": lambda rows: rows[1:],
    "added": lambda rows: [*rows, altered(rows[0])],
    "duplicated": lambda rows: [*rows, rows[0]],
    "altered": lambda rows: [altered(rows[0]), *rows[1:]],
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("format_", FORMATS)
def test_the_epoch_of_a_row_that_was_changed_in_its_file_is_named(tmp_path: Path, format_: str, change: str) -> None:
    job = FileJob(tmp_path, format=format_)
    job.run(make=lambda *numbers: batch_of(*(2 * number + 1 for number in numbers)))
    rewritten(job.file(1), lambda rows: rows[::-1])
    job.told()
    rewritten(job.file(1), CHANGES[change])
    told = job.told(code=1)
    assert wrong(told) == [1]
    assert told["foreign"] == 0


@pytest.mark.parametrize("format_", FORMATS)
def test_a_file_that_was_copied_is_told_with_its_rows(tmp_path: Path, format_: str) -> None:
    job = FileJob(tmp_path, format=format_)
    job.run()
    shutil.copy(job.file(2), job.out / f"copy.{format_}")
    told = job.told(code=1)
    assert (wrong(told), told["foreign"]) == ([], 5)
    found = told["rows"]["findings"]
    assert {str(one["row"]["id"]) for one in found} <= {str(number) for number in range(20, 30)}
    assert found[0]["positions"][0].startswith(f"copy.{format_}:")


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("name", ["part-00000", "more.{}.bak", "more.tmp", "COPY.{}X", "o.UPPER"])
def test_a_copy_that_readers_of_the_folder_read_is_found_under_any_name(
    tmp_path: Path, format_: str, name: str
) -> None:
    job = FileJob(tmp_path, format=format_)
    job.run()
    shutil.copy(job.file(2), job.out / name.format(format_))
    told = job.told(code=1)
    assert (wrong(told), told["foreign"], told["left_out"]) == ([], 5, [])


@pytest.mark.parametrize("format_", ["csv", "jsonl"])
@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".zst", ""])
def test_a_compressed_copy_is_found(tmp_path: Path, format_: str, suffix: str) -> None:
    job = FileJob(tmp_path, format=format_)
    job.run()
    codec = {".bz2": "bz2", ".zst": "zstd"}.get(suffix, "gzip")
    with pa.CompressedOutputStream(str(job.out / f"copy.{format_}{suffix}"), codec) as file:
        file.write(job.file(2).read_bytes())
    told = job.told(code=1)
    assert (wrong(told), told["foreign"], told["left_out"]) == ([], 5, [])


def test_a_file_of_no_format_is_listed(tmp_path: Path) -> None:
    job = FileJob(tmp_path)
    job.run()
    (job.out / "README.md").write_text("# Orders\n")
    assert "README.md, which cannot be read" in job.told()["left_out"][0]


@pytest.mark.parametrize("format_", ["parquet", "arrow"])
@pytest.mark.parametrize(
    ("column", "kind"),
    [("seen", pa.timestamp("us")), ("day", pa.int32()), ("yes", pa.int8()), ("word", pa.binary()), ("at", pa.int64())],
)
def test_a_column_whose_type_was_rewritten_differs(
    tmp_path: Path, format_: str, column: str, kind: pa.DataType
) -> None:
    """Its values are the same, as far as numbers go."""
    job = FileJob(tmp_path, format=format_)
    values = {
        "seen": pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * 2, pa.timestamp("us", "UTC")),
        "day": pa.array([date(2026, 1, 1)] * 2),
        "yes": pa.array([True, False]),
        "word": pa.array(["a", "b"]),
        "at": pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * 2, pa.timestamp("us")),
    }

    def rows(*numbers: int) -> pa.RecordBatch:
        return pa.record_batch({name: value.take(pa.array([0] * len(numbers))) for name, value in values.items()})

    job.run(make=rows)
    assert wrong(job.told()) == []
    file = job.file(1)
    parquet = format_ == "parquet"
    table = pyarrow.parquet.ParquetFile(file).read() if parquet else pa.ipc.open_file(file.read_bytes()).read_all()
    place = table.schema.get_field_index(column)
    other = table[column].cast(kind)
    for schema_change, verdict in ((table, []), (table.set_column(place, column, other), [1])):
        if parquet:
            pyarrow.parquet.write_table(schema_change, file)
        else:
            with pa.ipc.new_file(file, schema_change.schema) as writer:
                writer.write_table(schema_change)
        assert wrong(job.told(code=int(bool(verdict)))) == verdict


def test_files_of_several_schemas_are_proven(tmp_path: Path) -> None:
    job = FileJob(tmp_path)
    job.run(2, make=lambda *numbers: pa.record_batch({"id": numbers}))
    job.run(2, make=lambda *numbers: pa.record_batch({"id": numbers, "more": [1.5] * len(numbers)}))
    job.run(
        2, make=lambda *numbers: pa.record_batch({"id": pa.array(numbers, pa.int32()), "none": pa.nulls(len(numbers))})
    )
    assert wrong(job.told()) == []


def test_texts_that_are_not_utf8_are_compared_and_named(tmp_path: Path) -> None:
    """Spark's strings are bytes of any kind."""
    bad = pa.Array.from_buffers(pa.string(), 1, [None, *pa.array([b"\xff\xfe"]).buffers()[1:]])
    for format_ in ("csv", "parquet", "arrow"):
        job = FileJob(tmp_path / format_, format=format_)
        job.run(1, lambda *numbers: pa.record_batch({"id": numbers, "word": pa.concat_arrays([bad] * len(numbers))}))
        assert wrong(job.told()) == []
        shutil.copy(job.file(0), job.out / f"copy.{format_}")
        told = job.told(code=1)
        assert (wrong(told), told["left_out"]) == ([], [])
        assert {one["row"]["word"] for one in told["rows"]["findings"]} == {repr(b"\xff\xfe")}


@pytest.mark.parametrize("format_", ["csv", "parquet", "arrow"])
def test_a_file_with_two_columns_of_one_name_is_listed(tmp_path: Path, format_: str) -> None:
    job = FileJob(tmp_path, format=format_)
    job.run(1, lambda *numbers: pa.RecordBatch.from_arrays([pa.array(numbers)] * 2, ["id", "number"]))
    for path in job.out.glob(f"*.{format_}"):
        table = pa.table([[1], [1]], names=["id", "id"])
        if format_ == "csv":
            pyarrow.csv.write_csv(table, path)
        elif format_ == "parquet":
            pyarrow.parquet.write_table(table, path)
        else:
            with pa.ipc.new_file(path, table.schema) as file:
                file.write_table(table)
    assert "which cannot be read" in job.told(code=1)["left_out"][0]


def test_a_row_of_csv_may_be_longer_than_what_is_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "BLOCKS", (2**10, 2**14))
    job = FileJob(tmp_path, format="csv")
    job.run(make=lambda *numbers: pa.record_batch({"id": numbers, "word": ["x" * 700 * number for number in numbers]}))
    told = job.told(code=1)
    assert wrong(told) == [2]
    assert "cannot be read (straddling object" in told["left_out"][0]
    monkeypatch.setattr(text, "BLOCKS", (2**10, 2**14, 2**16))
    assert wrong(job.told()) == []


def test_a_file_under_the_name_of_another_one_belongs_to_its_epoch(tmp_path: Path) -> None:
    """Or to none, if no epoch wrote under this name."""
    job = FileJob(tmp_path)
    job.run()
    file = job.file(1)
    shutil.copy(file, file.with_name(file.name.replace("-0.", "-7.")))
    assert wrong(job.told(code=1)) == [1]
    file.with_name(file.name.replace("-0.", "-7.")).rename(job.out / file.name.replace("~1~", "~9~", 1))
    assert job.told(code=1)["foreign"] == 5


def test_a_file_in_the_folder_of_another_partition_differs(tmp_path: Path) -> None:
    job = FileJob(tmp_path, partition_by=["part"])
    job.run()
    file = next((job.out / "part=1").glob("*~1~0~0~*"))
    file.rename(job.out / "part=2" / file.name.replace("-", "-9"))
    assert wrong(job.told(code=1)) == [1]


@pytest.mark.parametrize("format_", ["parquet", "arrow", "csv"])
def test_a_file_that_cannot_be_read_is_named_and_its_rows_are_missing(tmp_path: Path, format_: str) -> None:
    job = FileJob(tmp_path, format=format_)
    job.run()
    file = job.file(1)
    file.write_bytes(file.read_bytes()[:-40] if format_ != "csv" else b"id,word\n1\n")
    told = job.told(code=1)
    assert wrong(told) == [1]
    assert file.name in told["left_out"][0]


@pytest.mark.parametrize("format_", FORMATS)
def test_an_epoch_that_another_process_committed_is_proven(tmp_path: Path, format_: str) -> None:
    """The proof lies in the decision, so it outlives who hashed the rows."""
    job = FileJob(tmp_path, format=format_)
    job.run(1)
    job.crash_in_commit()
    job.run(1)
    assert [line["verdict"] for line in job.told()["epochs"]] == ["proven"] * 3
    rewritten(job.file(1), CHANGES["deleted"])
    assert wrong(job.told(code=1)) == [1]


def test_the_name_of_a_folder_may_have_an_equals_sign(tmp_path: Path) -> None:
    job = Job(FileSink("files", tmp_path / "day=1"), tmp_path / "log")
    job.run(1)
    for place in (f"files:{tmp_path}/day=1", f"files=files:{tmp_path}/day=1"):
        assert [line["verdict"] for line in job.audit(place)["epochs"]] == ["proven"]


@pytest.mark.parametrize(("asked", "told"), [("1:", [1, 2]), (":1", [0, 1]), ("1", [1]), (":", [0, 1, 2])])
def test_either_end_of_the_epochs_may_be_left_out(tmp_path: Path, asked: str, told: list[int]) -> None:
    job = FileJob(tmp_path)
    job.run()
    found = job.audit(f"files:{job.out}", "--epochs", asked)
    assert [line["epoch"] for line in found["epochs"]] == told


@pytest.mark.parametrize("asked", ["2:1", "a:b", ""])
def test_epochs_that_are_no_range_are_refused(tmp_path: Path, asked: str) -> None:
    job = FileJob(tmp_path)
    job.run(1)
    done = CliRunner().invoke(app, ["verify", str(job.folder), "--target", f"files:{job.out}", "--epochs", asked])
    assert isinstance(done.exception, ConfigurationError)
    assert "the smaller one first" in str(done.exception)


def test_the_epochs_of_a_day_are_checked_alone(tmp_path: Path) -> None:
    job = FileJob(tmp_path)
    job.run()

    def verify(*arguments: str) -> Any:
        where = ("--target", f"files:{job.out}", "--json")
        return CliRunner().invoke(app, ["verify", str(job.folder), *where, *arguments])

    days = [(datetime.now(UTC) - timedelta(days=back)).date().isoformat() for back in (1, 0)]  # midnight may pass
    found = [line for day in days for audit in json.loads(verify("--day", day).stdout) for line in audit["epochs"]]
    assert [line["epoch"] for line in found] == list(range(EPOCHS))
    none = verify("--day", "2001-01-01")
    assert (none.exit_code, json.loads(none.stdout)) == (0, [])
    assert "wrote rows on 2001-01-01" in none.stderr
    for arguments, words in ((("last week",), "no day"), (("yesterday", "--epochs", "1"), "not both")):
        assert words in str(verify("--day", *arguments).exception)


def test_an_epoch_that_waits_for_its_commit_is_named_and_not_judged(tmp_path: Path) -> None:
    job = FileJob(tmp_path)
    job.run(1)
    assert job.told()["waiting"] is None
    with hooked(die_in_commit), pytest.raises(Crash):
        job.run(1)
    told = job.told()
    assert ([line["epoch"] for line in told["epochs"]], told["waiting"]) == ([0], 1)
    shown = CliRunner().invoke(app, ["verify", str(job.folder), "--target", f"files:{job.out}"]).stdout
    assert "not checked: epoch 1, which is decided and waits for its commit" in shown


@pytest.mark.parametrize("value", [b"no json", b"[1]"])
def test_a_message_that_is_no_json_object_is_told_with_one_hint(value: bytes) -> None:
    batch = pa.record_batch({"value": [value]})
    place = PostgresConnector("host=x").place("orders")
    with pytest.raises(ConfigurationError, match="not a JSON object") as refused:
        list(map_rows([batch], place, pa.schema([("id", pa.int64())]), None))
    assert message(refused.value).count("--map") == 1


def test_a_table_that_is_missing_is_not_to_be_created_by_whoever_verifies(tmp_path: Path) -> None:
    job = FileJob(tmp_path)
    job.run(1)
    (tmp_path / "target.db").touch()
    arguments = ["--target", "files=sql:nothing", "--at", f"sql=sqlite:///{tmp_path}/target.db"]
    done = CliRunner().invoke(app, ["verify", str(job.folder), *arguments])
    assert str(done.exception) == "table nothing does not exist; is this its name, and its database?"


def test_a_partitions_folder_that_is_called_like_a_file_is_none(tmp_path: Path) -> None:
    job = FileJob(tmp_path, partition_by=["word"])
    job.run(1, make=lambda *numbers: pa.record_batch({"id": numbers, "word": ["a.parquet"] * len(numbers)}))
    told = job.told()
    assert (wrong(told), told["left_out"]) == ([], [])


def test_without_proofs_nothing_is_hashed(tmp_path: Path) -> None:
    job = FileJob(tmp_path, proof=False)
    job.run(1)
    assert [line["verdict"] for line in job.told(code=3)["epochs"]] == ["unproven"]


def test_what_cannot_be_hashed_is_listed(tmp_path: Path) -> None:
    def nested(*numbers: int) -> pa.RecordBatch:
        return pa.record_batch({"id": numbers, "list": [[number] for number in numbers]})

    job = FileJob(tmp_path)
    job.run(make=nested)
    told = job.told()
    assert told["left_out"] == ["list (list<element: int64>)"]
    other = FileJob(tmp_path / "other")
    other.run(make=lambda *numbers: nested(*numbers).select(["list"]))
    assert {line["verdict"] for line in other.told(code=3)["epochs"]} == {"unproven"}


STRANGE = {
    "text": ["", None, 'a\r\n,"b"\n', "\0", "null", "ä" * 999],
    "real": [-0.0, 1.0, None, float("inf"), float("nan"), 1e-300],
    "single": pa.array([0.1, 1e20, None, -0.0, 3, 4], pa.float32()),
    "int": [None, 2**63 - 1, -(2**63), 0, 1, 2],
    "big": pa.array([None, 2**64 - 1, 0, 1, 2, 3], pa.uint64()),
    "number": pa.array([None, Decimal("1.5"), Decimal("-0.001"), Decimal(0), Decimal(10), None], pa.decimal128(30, 3)),
    "round": pa.array([None, Decimal(1500), Decimal(0), None, None, None], pa.decimal128(5, -2)),
    "at": pa.array([0, 1, None, -1, 10**15, 5], pa.timestamp("us", "Europe/Berlin")),
    "seconds": pa.array([0, 1, None, -1, 10**9, 5], pa.timestamp("s")),
    "time": pa.array([0, 1, None, 2, 3, 86_399], pa.time32("s")),
    "day": pa.array([0, 1, None, -1, 10_000, 5], pa.date32()),
    "word": pa.array(["x", None, "y", "x", "x", ""]).dictionary_encode(),
    "large": pa.array(["x", None, "y", "x", "x", ""], pa.large_string()),
    "bytes": [b"", None, b"\x00", b"\n", b"a", b'"'],
    "nothing": pa.nulls(6),
    "yes": [True, False, None, True, True, True],
}


@pytest.mark.parametrize("format_", FORMATS)
def test_strange_values_read_back_as_they_were_hashed(tmp_path: Path, format_: str) -> None:
    columns = dict(STRANGE)
    if format_ == "jsonl":
        columns["real"] = [-0.0, 1.0, None, 1e-300, 2.0, 3.0]  # JSON has no other
    if format_ == "parquet":
        del columns["round"]  # Parquet has no negative scale
    job = FileJob(tmp_path, format=format_)
    job.run(1, make=lambda *_: pa.record_batch(columns))
    assert job.told()["left_out"] == []


def test_strange_values_are_found_in_the_names_of_folders(tmp_path: Path) -> None:
    columns = {name: values for name, values in STRANGE.items() if name != "bytes"}
    batch = pa.record_batch({**columns, "text": [*STRANGE["text"][:-1], "ä"], "id": range(6)})
    job = FileJob(tmp_path, partition_by=list(columns))
    job.run(1, make=lambda *_: batch)
    assert [line["found"] for line in job.told()["epochs"]] == [24]


class TableJob(Job):
    """Into a table of SQLite."""

    def __init__(self, tmp_path: Path, **options: Any) -> None:
        self.file = tmp_path / "shop.db"
        self.url = f"sqlite:///{self.file}"
        sink = SqlAlchemySink("table", url=self.url, table="orders", create_table=True, **options)
        super().__init__(sink, tmp_path / "log")

    def told(self, code: int = 0) -> dict[str, Any]:
        return self.audit("sql:orders", "--at", f"sql={self.url}", code=code)

    def change(self, statement: str) -> None:
        with closing(sqlite3.connect(self.file)) as database, database:
            assert database.execute(statement).rowcount == 1


def without_decimals(*numbers: int) -> pa.RecordBatch:
    return batch_of(*numbers).drop_columns(["price"])


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM orders WHERE id = 3",
        "INSERT INTO orders SELECT * FROM orders WHERE id = 3",
        "UPDATE orders SET word = 'other' WHERE id = 3",
        "UPDATE orders SET real = real + 1e-9 WHERE id = 3",
        "UPDATE orders SET at = '2026-11-23 10:00:00.000001' WHERE id = 3",
        "UPDATE orders SET yes = 7 WHERE id = 3",
        "UPDATE orders SET bytes = x'00' WHERE id = 3",
    ],
)
def test_a_changed_row_of_a_table_that_shows_no_epochs_is_found(tmp_path: Path, change: str) -> None:
    job = TableJob(tmp_path)
    job.run(make=without_decimals)
    job.crash_in_commit(without_decimals)
    [line] = job.told()["epochs"]
    assert (line["epoch"], line["written"], line["found"], line["verdict"]) == (None, 40, 40, "proven")
    job.change(change)
    [line] = job.told(code=1)["epochs"]
    assert (line["written"], line["verdict"]) == (40, "differs")
    assert line["found"] == 40 + {"DELETE": -1, "INSERT": 1, "UPDATE": 0}[change[:6]]


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("at", "2026-11-23 10:00:00"),
        ("at", "2026-11-23T10:00:00.000000"),
        ("at", "2026-11-23 10:00:00.000000+02:00"),
        ("at", "2026-11-23 10:00:00.0"),
        ("day", "2026-11-23 00:00:00"),
        ("clock", "10:00:00"),
        ("clock", "10:00:00.000000+02:00"),
        ("clock", "10:00:00.000000 "),
    ],
)
def test_a_time_of_sqlite_in_another_spelling_differs(tmp_path: Path, column: str, text: str) -> None:
    """SQLAlchemy reads most of them as if nothing were changed."""
    job = TableJob(tmp_path)
    times = {
        "at": datetime(2026, 11, 23, 10, tzinfo=UTC).replace(tzinfo=None),
        "day": date(2026, 11, 23),
        "clock": time(10),
    }
    job.run(1, make=lambda *numbers: pa.record_batch({"id": numbers, column: [times[column]] * len(numbers)}))
    job.told()
    job.change(f"UPDATE orders SET {column} = '{text}' WHERE id = 3")
    done = CliRunner().invoke(app, ["verify", str(job.folder), "--target", "sql:orders", "--at", f"sql={job.url}"])
    assert done.exit_code == 1, done.output
    assert isinstance(done.exception, SchemaError) or "but not the same ones" in done.output


def test_epochs_that_cannot_be_told_apart_are_judged_together(tmp_path: Path) -> None:
    job = TableJob(tmp_path)
    job.run(2, make=without_decimals)
    where = ["sql:orders", "--at", f"sql={job.url}", "--epochs"]
    assert [line["written"] for line in job.audit(*where, "1:1")["epochs"]] == [20]
    job.change("DELETE FROM orders WHERE id = 3")
    assert [line["verdict"] for line in job.audit(*where, "1:1", code=1)["epochs"]] == ["differs"]
    done = CliRunner().invoke(app, ["verify", str(job.folder), "--target", *where, "7:8"])
    assert isinstance(done.exception, ConfigurationError)


def test_strange_values_of_a_table_read_back_as_they_were_hashed(tmp_path: Path) -> None:
    unknown = {"big", "number", "round"}  # to SQLite
    columns = {name: values for name, values in STRANGE.items() if name not in unknown}
    columns["real"] = [-0.0, 1.0, None, float("inf"), 0.1, 1e-300]
    job = TableJob(tmp_path)
    job.run(1, make=lambda *_: pa.record_batch(columns).drop_columns(["nothing"]))
    told = job.told()
    assert ([line["found"] for line in told["epochs"]], told["left_out"]) == ([24], [])


@pytest.mark.parametrize("compared", [True, False])
def test_columns_that_cannot_be_compared_are_listed(tmp_path: Path, compared: bool) -> None:
    """SQLite's columns without a type."""
    job = TableJob(tmp_path)
    with closing(sqlite3.connect(job.file)) as database, database:
        database.execute(f"CREATE TABLE orders (id{' bigint' if compared else ''}, word)")
    job.run(1, make=lambda *numbers: batch_of(*numbers).select(["id", "word"]))
    told = job.told(code=0 if compared else 3)
    assert told["left_out"] == ["word (NULL)"] if compared else ["id (NULL)", "word (NULL)"]
    [line] = told["epochs"]
    assert (line["found"], line["verdict"]) == (10, "proven" if compared else "unproven")


def test_a_table_without_proofs_is_unproven(tmp_path: Path) -> None:
    job = TableJob(tmp_path, proof=False)
    job.run(1, make=without_decimals)
    assert [line["verdict"] for line in job.told(code=3)["epochs"]] == ["unproven"]


def test_a_table_that_shows_no_epochs_is_not_judged_while_one_is_not_completed(tmp_path: Path) -> None:
    job = TableJob(tmp_path)
    job.run(1, make=without_decimals)
    with hooked(die_in_commit), pytest.raises(Crash):
        job.run(1, make=without_decimals)
    told = job.told(code=3)
    assert (told["verdict"], told["epochs"]) == ("unproven", [])
    assert "onceward txn commit" in told["error"]


def test_a_target_that_does_not_answer_is_named_and_the_others_are_judged(tmp_path: Path) -> None:
    job = FileJob(tmp_path)
    job.run(1)
    other = f"files=sql:orders --at sql=sqlite:///{tmp_path}/none.db".split()
    where = ["--target", other[0], "--target", f"files=files:{job.out}", *other[1:]]
    done = CliRunner().invoke(app, ["verify", str(job.folder), *where, "--json"])
    assert done.exit_code == 1
    absent, files = json.loads(done.stdout)
    assert "there is no database" in absent["error"]
    assert (absent["verdict"], files["verdict"]) == ("unproven", "proven")
    assert "not checked: there is no database" in CliRunner().invoke(app, ["verify", str(job.folder), *where]).stdout


def test_a_table_is_read_again_if_an_epoch_was_committed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, ask = TableJob(tmp_path), audit_module.check_stopped
    job.run(1, make=without_decimals)

    def run_once_more(*arguments: Any) -> None:
        monkeypatch.setattr(audit_module, "check_stopped", ask)
        job.run(1, make=without_decimals)
        ask(arguments[0], operations.open_log(str(job.folder)).view, *arguments[2:])

    monkeypatch.setattr(audit_module, "check_stopped", run_once_more)
    assert [line["written"] for line in job.told()["epochs"]] == [20]


def test_a_table_that_shows_no_epochs_is_not_compared_with_what_an_epoch_read(tmp_path: Path) -> None:
    job = TableJob(tmp_path)
    job.run(1, make=without_decimals)
    source = ["--source", "kafka:orders", "--at", "kafka=127.0.0.1:1"]
    where = ["--target", "sql:orders", "--at", f"sql={job.url}", *source]
    done = CliRunner().invoke(app, ["verify", str(job.folder), *where])
    assert isinstance(done.exception, RefusedError)
    assert "leave out --source" in message(done.exception)


UPSERTS, KEYS = 3, 7


class Orders:
    """What a pipeline of upserts reads: epoch by epoch, the rows that it was given, in two partitions."""

    title = "a topic"

    def of_epoch(self, epoch: ProvenEpoch) -> Iterator[pa.RecordBatch]:
        first = int(epoch.start[0] if epoch.start else 0)
        for number in range(first, int(epoch.end[0])):
            for subtask in range(SUBTASKS):
                rows = upserts_of(*range(number * ROWS + subtask, (number + 1) * ROWS, SUBTASKS))
                yield rows.append_column("partition", pa.array([subtask] * rows.num_rows))


def upserts_of(*numbers: int) -> pa.RecordBatch:
    """Rows of which each epoch overwrites some of the keys of the one before it."""
    rows = [{"id": 2 * (n % KEYS) + n % SUBTASKS + 100 * (n // (2 * ROWS)), "word": f"v{n}"} for n in numbers]
    return pa.RecordBatch.from_pylist(rows)


class UpsertJob(TableJob):
    """Upserts into a table of SQLite, which does not show which epoch wrote a row."""

    def __init__(self, tmp_path: Path, keys: Any = "id") -> None:
        super().__init__(tmp_path, key=keys)
        self.run(UPSERTS, upserts_of)

    def audited(self, epochs: range | None = None, key: Any = "id") -> operations.Audit:
        log = operations.open_log(str(self.folder))
        place = operations.open_place("sql:orders", self.url)
        rows = Orders()
        return operations.audit(
            log, "table", place, epochs=epochs, source=cast("Any", rows), mapping=lambda batch: batch, key=key
        )


def named(audit: operations.Audit) -> set[tuple[str, Any]]:
    findings = audit.rows.findings if audit.rows is not None else ()
    return {(one.kind.value, one.row["id"]) for one in findings}


def test_the_newest_row_of_each_key_proves_upserts_of_a_table_that_shows_no_epochs(tmp_path: Path) -> None:
    job = UpsertJob(tmp_path)
    told = job.told(code=3)
    assert (told["verdict"], [line["written"] for line in told["epochs"]]) == ("unproven", [30])
    found = job.audited()
    assert (found.verdict, found.rows) == ("proven", None)
    assert [(line.epoch, line.written) for line in found.lines] == [(0, 10), (1, 10), (2, 10)]
    assert sum(line.found for line in found.lines) == sum(line.keys or 0 for line in found.lines) > KEYS
    first = job.audited(range(1))
    assert (first.verdict, [line.epoch for line in first.lines]) == ("proven", [0])  # the others only overwrite


@pytest.mark.parametrize(
    ("damage", "named_rows", "epochs"),
    [
        ("UPDATE orders SET word = 'other' WHERE id = 103", {("wrong", 103)}, [2]),
        ("DELETE FROM orders WHERE id = 103", {("missing", 103)}, [2]),
        ("INSERT INTO orders SELECT id + 1000, word FROM orders WHERE id = 103", {("wrong", 1103)}, []),
        ("UPDATE orders SET word = 'v3' WHERE id = 7", {("wrong", 7)}, [1]),  # as an earlier epoch had it
    ],
)
def test_an_upserted_row_that_was_changed_by_hand_is_named(
    tmp_path: Path, damage: str, named_rows: set[tuple[str, int]], epochs: list[int]
) -> None:
    job = UpsertJob(tmp_path)
    job.change(damage)
    found = job.audited()
    assert found.verdict == "differs"
    assert named(found) == named_rows
    assert [line.epoch for line in found.lines if line.differs] == epochs
    first = job.audited(range(1))
    assert [line.proven for line in first.lines] == [True]
    assert named(first) == {one for one in named_rows if not epochs}  # of other epochs, a row that nobody wrote alone


@pytest.mark.parametrize("older", [True, False])
def test_a_row_of_a_key_that_no_epoch_read_is_that_of_an_older_epoch_if_there_is_one(older: bool) -> None:
    newest = NewestRows(["id"])
    newest.add(5, 0, ["id", "word"], [{"id": 1, "word": "a"}])
    found = [("", Record({"id": number, "word": "a"}, "here")) for number in (1, 2)]
    judged = newest.compare("t", found, lambda _: None, lambda _: not older)
    assert (judged.right[5], judged.older, judged.foreign) == (1, int(older), int(not older))
    assert len(judged.comparison.findings) == int(not older)


def test_numbers_that_are_none_and_lists_are_found_in_keys_and_in_values() -> None:
    def rows() -> list[dict[str, Any]]:
        number = pa.array([math.nan, 1.0])
        return list(shown([pa.record_batch({"id": number, "a": pa.array([[1], [2, 3]]), "x": number})]))

    newest = NewestRows(["id", "a"])
    newest.add(5, 0, ["id", "a", "x"], rows())
    judged = newest.compare("t", [("", Record(row, "here")) for row in rows()], lambda _: 5, lambda _: False)
    assert (judged.right[5], judged.comparison.findings) == (2, ())


@pytest.mark.parametrize(
    ("columns", "keys", "damage", "verdict"),
    [
        ("id BLOB PRIMARY KEY", [b"\xff", b"b'\\xff'"], "", "proven"),
        ("id BLOB PRIMARY KEY", [b"\xff", b"b'\\xff'"], "DELETE FROM orders WHERE id = x'ff'", "differs"),
        ("id BLOB PRIMARY KEY", [b"\xff"], "UPDATE orders SET id = x'62275c78666627'", "differs"),
        ("id DOUBLE PRIMARY KEY", [0.0, -0.0], "", "proven"),
        ("id TEXT UNIQUE", ["None"], "INSERT INTO orders VALUES (NULL, 'new')", "differs"),
        ("id TEXT PRIMARY KEY", ["a", "A"], "DELETE FROM orders WHERE id = 'a'", "differs"),
    ],
)
def test_keys_are_told_apart_as_the_table_does(
    tmp_path: Path, columns: str, keys: list[Any], damage: str, verdict: str
) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database, database:
        database.execute(f"CREATE TABLE orders ({columns}, word TEXT)")
    rows = pa.RecordBatch.from_pydict({"id": keys, "word": ["new"] * len(keys)})
    job = TableJob(tmp_path, key="id")
    job.run(1, make=lambda *_: rows)
    if damage:
        job.change(damage)
    source: Any = SimpleNamespace(title="a topic", of_epoch=lambda _: iter([rows]))
    log, place = operations.open_log(str(job.folder)), operations.open_place("sql:orders", job.url)
    audit = operations.audit(log, "table", place, source=source, mapping=lambda batch: batch, key="id")
    assert audit.verdict == verdict
    assert all(isinstance(one.row.get("id", ""), str | float) for one in (audit.rows.findings if audit.rows else ()))


def test_a_ledger_with_other_numbers_differs_without_a_source(tmp_path: Path) -> None:
    job = UpsertJob(tmp_path)
    job.change("UPDATE onceward_ledger SET row_count = row_count + 1 WHERE epoch = 1 AND subtask = 0")
    [_, line] = job.told(code=1)["epochs"]
    assert (line["epoch"], line["written"], line["ledger"]) == (1, 10, 11)
    assert [line.epoch for line in job.audited().lines if line.differs] == [1]


def test_a_table_of_upserts_with_more_rows_than_were_written_differs(tmp_path: Path) -> None:
    job = UpsertJob(tmp_path)
    with closing(sqlite3.connect(job.file)) as database, database:
        database.executemany("INSERT INTO orders VALUES (?, 'x')", [(9000 + number,) for number in range(25)])
    assert job.told(code=1)["verdict"] == "differs"


def test_upserts_of_a_key_of_two_columns_are_proven(tmp_path: Path) -> None:
    job = UpsertJob(tmp_path, ["id", "word"])
    assert job.audited(key=["id", "word"]).verdict == "proven"
    job.change("UPDATE orders SET word = 'other' WHERE word = 'v29'")
    found = job.audited(key=["id", "word"])
    assert {finding.kind for finding in found.rows.findings} == {"missing", "wrong"}  # type: ignore[union-attr]


def test_upserts_from_before_a_rewind_are_not_judged(tmp_path: Path) -> None:
    """Numbers of epochs begin anew, so those of the time before say nothing of the order."""
    job = UpsertJob(tmp_path)
    view = operations.open_log(str(job.folder)).view
    epochs = [*view.proofs.epochs, *(msgspec.structs.replace(one, epoch=one.epoch + 1) for one in view.proofs.epochs)]
    again = dataclasses.replace(view, proofs=msgspec.structs.replace(view.proofs, epochs=tuple(epochs)))
    assert Expected.of(view, "table").ordered == [0, 1, 2]
    assert Expected.of(again, "table").ordered == [3]


def test_upserts_are_not_judged_while_an_epoch_is_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = UpsertJob(tmp_path)

    class Late(Orders):
        def of_epoch(self, epoch: ProvenEpoch) -> Iterator[pa.RecordBatch]:
            if job.written == UPSERTS:
                job.run(1, upserts_of)
            yield from super().of_epoch(epoch)

    monkeypatch.setitem(globals(), "Orders", Late)
    with pytest.raises(RefusedError) as refused:
        job.audited()
    assert refused.value.reason is Refusal.NOT_STOPPED


def test_a_database_that_is_not_there_is_not_created(tmp_path: Path) -> None:
    job = TableJob(tmp_path)
    job.run(1, make=without_decimals)
    other = tmp_path / "other.db"
    told = job.audit("sql:orders", "--at", f"sql=sqlite:///{other}", code=1)
    assert "there is no database" in told["error"]
    assert not other.exists()


def test_a_value_that_is_none_of_its_column_is_named(tmp_path: Path) -> None:
    job = TableJob(tmp_path)
    job.run(1, make=without_decimals)
    job.change("UPDATE orders SET day = 'tomorrow' WHERE id = 3")
    done = CliRunner().invoke(app, ["verify", str(job.folder), "--target", "sql:orders", "--at", f"sql={job.url}"])
    assert isinstance(done.exception, SchemaError)
    assert "tomorrow" in str(done.exception)


@pytest.mark.parametrize("change", ["id = 11.5", "id = 'eleven'", "bytes = '11'", "word = x'31'"])
def test_a_value_of_another_class_in_a_table_of_sqlite_is_named(tmp_path: Path, change: str) -> None:
    job = TableJob(tmp_path)
    job.run(make=without_decimals)
    job.change(f"UPDATE orders SET {change} WHERE id = 11")
    done = CliRunner().invoke(app, ["verify", str(job.folder), "--target", "sql:orders", "--at", f"sql={job.url}"])
    assert isinstance(done.exception, SchemaError)
    assert "not of its column's type" in str(done.exception)


def sides(messages: list[bytes], rows: list[dict[str, Any]], schema: pa.Schema, **names: Any) -> Comparison:
    """What is found if these messages are compared with these rows of a table."""
    value = pa.record_batch({"value": pa.array(messages, pa.binary())})
    source: Any = SimpleNamespace(title="a topic", batches=lambda: iter([value]))
    found = pa.RecordBatch.from_pylist(rows, schema)
    piece = RereadPiece(found, [""] * len(rows), [str(number) for number in range(len(rows))])
    reread = Reread(iter([piece]), {}, schema, lambda _: False)

    class Table(PostgresTable):
        def reread(self, scope: Any, columns: Any) -> Reread:  # noqa: ARG002
            return reread

    return compare_places(source, Table("a table", None), key=names.get("key"))  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["2026-11-22T10:00:07Z", "2026-11-22T11:00:07.000+01:00", "2026-11-22 10:00:07"])
def test_a_time_with_a_zone_is_compared_with_that_of_a_table_without_one(text: str) -> None:
    """As Spark's to_json writes it, and as MariaDB and SQLite have it."""
    schema = pa.schema({"at": pa.timestamp("us")})
    batch = pa.record_batch({"at": [text, None]})
    shown_rows = OtherTable("a table", None).as_hashed(batch, schema)  # type: ignore[arg-type]
    assert shown_rows.to_pylist() == [{"at": datetime(2026, 11, 22, 10, 0, 7)}, {"at": None}]  # noqa: DTZ001


X = pa.schema({"id": pa.int64(), "x": pa.int64()})


@pytest.mark.parametrize(("x", "exact"), [(5, True), (9, False), (None, False)])
def test_a_field_that_the_first_message_lacks_is_compared(x: int | None, exact: bool) -> None:
    found = sides([b'{"id":1}', b'{"id":2,"x":5}'], [{"id": 1, "x": None}, {"id": 2, "x": x}], X, key="id")
    assert found.exact is exact


@pytest.mark.parametrize(("x", "exact"), [(7, False), (None, True)])
def test_a_field_that_is_null_in_every_message_is_compared(x: int | None, exact: bool) -> None:
    assert sides([b'{"id":1,"x":null}'], [{"id": 1, "x": x}], X).exact is exact


@pytest.mark.parametrize(
    ("number", "exact"), [("12345678901234567.89", True), ("12345678901234568", False), ("12345678901234567.9", False)]
)
def test_a_number_with_more_digits_than_a_double_is_compared_exactly(number: str, exact: bool) -> None:
    schema = pa.schema([pa.field("p", pa.string(), metadata={NUMBER: ""})])
    assert sides([b'{"p":12345678901234567.89}', b'{"p":1.5}'], [{"p": number}, {"p": "1.5"}], schema).exact is exact


def test_a_double_is_compared_as_such() -> None:
    schema = pa.schema({"p": pa.float64()})
    messages = [b'{"p":0.1}', b'{"p":0.1000000000000000055511151231257827}', b'{"p":1e300}', b'{"p":3}']
    assert sides(messages, [{"p": 0.1}, {"p": 0.1}, {"p": 1e300}, {"p": 3.0}], schema).exact


def test_bytes_that_are_no_text_differ_from_the_text_of_their_digits() -> None:
    rows = [shown_row] = list(shown([pa.record_batch({"value": pa.array([b"\xff"])})]))
    assert rows != list(shown([pa.record_batch({"value": pa.array([b"ff"])})]))
    assert rows != list(shown([pa.record_batch({"value": pa.array([repr(shown_row["value"])])})]))


def test_bytes_that_are_no_text_are_not_found_in_the_text_of_their_digits() -> None:
    messages = pa.record_batch({"value": pa.array([b"\xff"])})
    text = pa.record_batch({"value": pa.array([b"b'\\xff'"])})
    [expected], [other] = shown([messages]), shown([text])
    [missing, wrong] = compare("t", [expected], [Record(other, "here")]).findings
    assert wrong.row == missing.row == {"value": "b'\\xff'"}


def test_rows_without_a_column_are_counted() -> None:
    nothing = pa.RecordBatch.from_arrays([], names=[])
    reread = Reread(iter([RereadPiece(nothing, ["", ""], ["here", "there"])]), {}, nothing.schema, lambda _: False)
    assert [(one.row, one.position) for one in records(reread)] == [({}, "here"), ({}, "there")]


def test_a_uuid_is_compared_with_its_text() -> None:
    """The table has sixteen bytes, which are hashed."""
    schema = pa.schema([pa.field("id", pa.binary(), metadata={UUID: ""}), pa.field("n", pa.int64())])
    text, other = "12345678-1234-5678-1234-56781234567a", "{12345678-1234-5678-1234-56781234567B}"
    messages = [json.dumps({"id": one, "n": n}).encode() for n, one in enumerate((text, other, None))]
    bytes_of = [uuid.UUID(text).bytes, uuid.UUID(other).bytes, None]
    table = [{"id": one, "n": n} for n, one in enumerate(bytes_of)]
    assert sides(messages, table, schema).exact
    found = sides(messages[:1], [{"id": bytes_of[1], "n": 0}], schema, key="n")
    assert found.findings[0].row["id"] == other.strip("{}").lower()


@pytest.mark.parametrize(
    ("text", "data", "exact"),
    [("AP8=", b"\0\xff", True), ("AP8=", b"AP8=", False), ("", b"", True), ("no Base64", b"no Base64", True)],
)
def test_bytes_are_compared_with_base64(text: str, data: bytes, exact: bool) -> None:
    """As Spark's from_json reads them."""
    assert sides([json.dumps({"x": text}).encode()], [{"x": data}], pa.schema({"x": pa.binary()})).exact is exact


@pytest.mark.parametrize(("kind", "number"), [(pa.date32(), 2_932_897), (pa.timestamp("us"), -62_135_596_800_000_001)])
def test_a_time_that_python_does_not_have_is_shown_as_text(kind: pa.DataType, number: int) -> None:
    width = pa.int32() if kind == pa.date32() else pa.int64()
    rows = pa.record_batch({"at": pa.array([number, 0, None], width).cast(kind)})
    reread = Reread(iter([RereadPiece(rows, [""] * 3, [""] * 3)]), {}, rows.schema, lambda _: False)
    shown_as = "10000-01-01" if kind == pa.date32() else "0000-12-31 23:59:59.999999"
    first = date(1970, 1, 1) if kind == pa.date32() else datetime(1970, 1, 1)  # noqa: DTZ001 - none in the data
    assert [record.row for record in records(reread)] == [{"at": shown_as}, {"at": first}, {}]
