"""FileSource: files as a resettable source. SCENARIOS 67, 68, 70."""

from __future__ import annotations

import json
import lzma
import math
import os
import re
import time
import zlib
from collections import Counter
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest

from onceward import FileSink, FileSource
from onceward.core import CheckpointConfig
from onceward.core.errors import ConfigurationError, SourceError
from onceward.core.log import MemoryStore

from .engine_kit import pipeline
from .sink_kit import Target, TargetSink, prepared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from onceward.types import FileFormat

FORMATS = ["parquet", "csv", "jsonl", "arrow"]


def put(folder: Path, name: str, numbers: Iterable[int], format_: FileFormat = "parquet") -> None:
    """Write a file as it should be: under another name, then renamed."""
    hidden = folder / f".{name}"
    table = pa.table({"n": list(numbers)})
    match format_:
        case "parquet":
            pyarrow.parquet.write_table(table, hidden)
        case "csv":
            pyarrow.csv.write_csv(table, hidden)
        case "arrow":
            pyarrow.feather.write_feather(table, str(hidden), compression="uncompressed")
        case _:
            hidden.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    hidden.rename(folder / f"{name}.{format_}")


def rows(source: FileSource, start: Any, end: Any) -> list[int]:
    return [
        n for split in source.splits(start, end) for piece in source.read(split) for n in piece.batch["n"].to_pylist()
    ]


@pytest.mark.parametrize("format_", FORMATS)
def test_67_a_stored_position_gives_the_same_rows_again(tmp_path: Path, format_: FileFormat):
    put(tmp_path, "a", range(10), format_)
    put(tmp_path, "b", range(10, 15), format_)
    source = FileSource(tmp_path, format=format_)
    end = source.latest(source.start())
    first = rows(source, source.start(), end)
    assert sorted(first) == list(range(15))
    end = json.loads(json.dumps(end))
    assert rows(FileSource(tmp_path, format=format_), {}, end) == first
    assert source.latest(end) == end


def test_67_reading_goes_on_in_the_middle_of_a_file(tmp_path: Path):
    put(tmp_path, "a", range(10))
    source = FileSource(tmp_path)
    end = source.latest({})
    [split] = source.splits({}, end)
    middle = source.advance({}, split, 4)
    assert rows(source, middle, end) == list(range(4, 10))
    assert source.latest(middle) == source.latest(middle, until=end) == end


def test_68_a_file_that_is_another_one_now_is_an_error(tmp_path: Path):
    put(tmp_path, "a", range(10))
    source = FileSource(tmp_path)
    end = source.latest({})
    put(tmp_path, "a", range(12))
    with pytest.raises(SourceError, match=r"a\.parquet has changed since it was read"):
        source.latest(end)


def test_68_a_file_that_is_gone_before_it_was_read_is_an_error(tmp_path: Path):
    put(tmp_path, "a", range(10))
    source = FileSource(tmp_path)
    end = source.latest({})
    (tmp_path / "a.parquet").unlink()
    with pytest.raises(SourceError, match=r"a\.parquet"):
        rows(source, {}, end)
    assert source.latest(end) == end  # once read, it may go


def test_68_a_file_that_is_gone_when_only_a_part_of_it_was_read_is_an_error(tmp_path: Path):
    put(tmp_path, "a", range(10))
    source = FileSource(tmp_path)
    [split] = source.splits({}, source.latest({}))
    middle = source.advance({}, split, 4)
    (tmp_path / "a.parquet").unlink()
    with pytest.raises(SourceError, match=r"a\.parquet is gone, and only 4 of its 10 rows were read"):
        source.latest(middle)


def test_68_a_file_that_grows_while_it_is_read_is_an_error(tmp_path: Path):
    put(tmp_path, "a", range(10), "jsonl")
    source = FileSource(tmp_path, format="jsonl")
    end = source.latest({})
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('{"n": 10}\n')
    with pytest.raises(SourceError, match=r"a\.jsonl has changed"):
        rows(source, {}, end)


def test_all_subtasks_read_by_the_schema_of_the_oldest_file(tmp_path: Path):
    (tmp_path / "a.csv").write_text("n\n1\n")
    time.sleep(0.01)
    (tmp_path / "b.csv").write_text("n\nx\n")
    source = FileSource(tmp_path, format="csv")
    source.validate()
    with pytest.raises(SourceError, match=r"b\.csv"):
        rows(source, {}, {"b.csv": [1, 1, *_stat(tmp_path / "b.csv")]})
    with pytest.raises(ConfigurationError, match="holds no file yet"):
        FileSource(tmp_path, pattern="*.parquet").validate()


def _stat(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def test_70_new_files_are_picked_up_oldest_first_and_hidden_ones_passed_over(tmp_path: Path):
    put(tmp_path, "b", range(5))
    source = FileSource(tmp_path)
    first = source.latest({})
    time.sleep(0.01)
    put(tmp_path, "a", range(5, 8))
    (tmp_path / "_pending").mkdir()
    put(tmp_path / "_pending", "c", range(100))
    second = source.latest(first)
    assert rows(source, {}, second) == list(range(8))
    assert rows(source, first, second) == [5, 6, 7]


def test_files_in_a_folder_that_is_a_link_are_read_once(tmp_path: Path):
    """Links lead out of the folder, to a part of it, to itself, and from there back."""
    folder, elsewhere, further = (tmp_path / name for name in ("here", "elsewhere", "further"))
    for number, place in enumerate([folder, folder / "2026", elsewhere / "a", further]):
        place.mkdir(parents=True)
        put(place, "x", [number])
    (folder / "old").symlink_to(elsewhere)
    (folder / "latest").symlink_to(folder / "2026")
    (folder / "self").symlink_to(folder)
    (elsewhere / "back").symlink_to(folder)
    (elsewhere / "self").symlink_to(elsewhere)
    (elsewhere / "on").symlink_to(further)
    (further / "back").symlink_to(elsewhere)
    source = FileSource(folder, bounded=True)
    assert sorted(rows(source, {}, source.end())) == [0, 1, 2, 3]


def test_a_folder_that_cannot_be_listed_is_an_error_and_one_that_is_gone_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        put(tmp_path / name, "x", range(3))
    real = os.scandir

    def failing(error: type[OSError]) -> Callable[[Any], Any]:
        def scandir(path: Any) -> Any:
            if str(path).endswith("b"):
                raise error(str(path))
            return real(path)

        return scandir

    source = FileSource(tmp_path, schema=pa.schema([("n", pa.int64())]), bounded=True)
    monkeypatch.setattr(os, "scandir", failing(PermissionError))
    with pytest.raises(SourceError, match="b cannot be listed"):
        source.end()
    monkeypatch.setattr(os, "scandir", failing(FileNotFoundError))
    assert rows(source, {}, source.end()) == [0, 1, 2]


@pytest.mark.parametrize("given", [None, pa.schema([("n", pa.int64())])])
@pytest.mark.parametrize(
    ("format_", "name"),
    [
        *[("jsonl", name) for name in ("part-00000-aa-c000.json", "x.ndjson", "X.JSONL", "2026")],
        *[("csv", name) for name in ("X.CSV", "orders_2026", "x.txt")],
        *[("parquet", name) for name in ("x.parq", "part-0.snappy.parquet", "orders", "X.PARQUET")],
        *[("arrow", name) for name in ("x.feather", "orders", "x.ipc")],
    ],
)
def test_every_file_is_read_whatever_its_suffix(tmp_path: Path, format_: FileFormat, name: str, given: Any):
    put(tmp_path, "x", range(3), format_)
    (tmp_path / f"x.{format_}").rename(tmp_path / "y").rename(tmp_path / name)
    source = FileSource(tmp_path, format=format_, schema=given, bounded=True)
    source.validate()
    assert rows(source, {}, source.end()) == [0, 1, 2]


@pytest.mark.parametrize("given", [None, pa.schema([("n", pa.int64())])])
@pytest.mark.parametrize("format_", ["csv", "jsonl"])
@pytest.mark.parametrize(
    ("codec", "suffix"),
    [("gzip", ".gz"), ("gzip", ".GZ"), ("gzip", ""), ("bz2", ".bz2"), ("zstd", ".zst"), ("zstd", ".zstd"), ("lz4", "")],
)
def test_compressed_text_is_read_whatever_its_suffix(
    tmp_path: Path, format_: FileFormat, codec: str, suffix: str, given: Any
):
    put(tmp_path, "x", range(3), format_)
    plain = tmp_path / f"x.{format_}"
    with pa.CompressedOutputStream(str(tmp_path / f"y.{format_}{suffix}"), codec) as file:
        file.write(plain.read_bytes())
    plain.unlink()
    source = FileSource(tmp_path, format=format_, schema=given, bounded=True)
    source.validate()
    assert rows(source, {}, source.end()) == [0, 1, 2]


@pytest.mark.parametrize("given", [None, pa.schema([("n", pa.int64())])])
@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("README.md", b"# What is here\n\nOrders.\n"),
        ("x.zip", b"PK\x03\x04\x14\x00\x00\x00n\n1\n"),
        ("x.snappy", b"\x00\x00\x00\x04\x00\x00\x00\x06\x04\x0cn\n1\n"),
        ("x.deflate", zlib.compress(b"n\n1\n")),
        ("x.xz", lzma.compress(b"n\n1\n")),
        ("utf-16", "n\n1\n".encode("utf-16")),
        ("x.tmp", b"n\n1\n"),
        ("x.csv._COPYING_", b"n\n1\n"),
        ("no header", b"1\n2\n"),
    ],
)
def test_a_file_that_is_not_in_the_format_is_named(
    tmp_path: Path, format_: FileFormat, name: str, content: bytes, given: Any
):
    put(tmp_path, "a", range(3), format_)
    source = FileSource(tmp_path, format=format_, schema=given, bounded=True)
    source.validate()
    first = source.end()
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=re.escape(str(tmp_path / name))):
        source.latest(first)
    source = FileSource(tmp_path, format=format_, schema=given, bounded=True, pattern=f"*.{format_}")
    source.validate()
    assert rows(source, {}, source.end()) == [0, 1, 2]


@pytest.mark.parametrize("format_", FORMATS)
def test_a_start_names_the_file_of_another_format(tmp_path: Path, format_: FileFormat):
    put(tmp_path, "a", range(3), format_)
    other = "csv" if format_ != "csv" else "parquet"
    (tmp_path / f"b.{other}.gz").touch()
    (tmp_path / f"b.{other}").touch()
    with pytest.raises(ConfigurationError, match=rf"b\.{other} is called as a file in the format '{other}'.*pattern="):
        FileSource(tmp_path, format=format_, schema=pa.schema([("n", pa.int64())])).validate()


@pytest.mark.parametrize("pattern", ["2026/*", "*/a*"])
def test_a_pattern_may_name_folders(tmp_path: Path, pattern: str):
    for number, folder in enumerate(("2025", "2026")):
        (tmp_path / folder).mkdir()
        put(tmp_path / folder, "ba"[number], range(number, 3))
    source = FileSource(tmp_path, pattern=pattern)
    assert rows(source, {}, source.end()) == [1, 2]


@pytest.mark.parametrize("pattern", ["", "/data/*"])
def test_a_pattern_that_can_match_no_file_is_refused(tmp_path: Path, pattern: str):
    with pytest.raises(ConfigurationError, match="pattern must match paths below the folder"):
        FileSource(tmp_path, pattern=pattern)


def test_a_csv_file_with_two_columns_of_one_name_is_refused(tmp_path: Path):
    (tmp_path / "a.csv").write_text("n,n\n1,2\n")
    source = FileSource(tmp_path, format="csv", schema=pa.schema([("n", pa.int64())]))
    with pytest.raises(SourceError, match=r"a\.csv.*several columns are named \['n'\]"):
        source.latest({})


def test_70_the_rows_of_a_folder_that_is_called_like_a_file_are_read_once(tmp_path: Path):
    """As Spark's df.write.parquet("out.parquet") makes one, and FileSink a partition's."""
    (tmp_path / "out.parquet").mkdir()
    put(tmp_path / "out.parquet", "part-0", range(3))
    source = FileSource(tmp_path)
    assert rows(source, {}, source.latest({})) == [0, 1, 2]


def test_a_limit_takes_whole_files(tmp_path: Path):
    for number in range(4):
        put(tmp_path, f"f{number}", range(10 * number, 10 * number + 10))
    source = FileSource(tmp_path)
    assert len(rows(source, {}, source.latest({}, limit=15))) == 20


@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_each_file_belongs_to_one_subtask_whatever_their_number(tmp_path: Path, parallelism: int):
    for number in range(8):
        put(tmp_path, f"f{number}", range(10 * number, 10 * number + 10))
    source = FileSource(tmp_path)
    shares = [source.share(n, parallelism) for n in range(parallelism)]
    assert Counter(n for share in shares for n in rows(share, {}, share.latest({}))) == Counter(range(80))
    position = source.latest({})
    merged = [source.share(n, 3).merge([position]) for n in range(3)]
    assert sorted(name for part in merged for name in part) == sorted(position)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="is not a folder"):
        FileSource(tmp_path / "no").validate()
    with pytest.raises(ConfigurationError, match="format 'xml'"):
        FileSource(tmp_path, format="xml")  # type: ignore[arg-type]


@pytest.mark.parametrize("format_", FORMATS)
def test_what_a_file_sink_writes_a_file_source_reads_across_restarts(tmp_path: Path, format_: FileFormat):
    """Files to files to a table, the second pipeline failing once."""
    folder, store, target = tmp_path / "in", MemoryStore(), Target()
    folder.mkdir()
    for number in range(5):
        put(folder, f"f{number}", range(100 * number, 100 * number + 100), format_)
    first = pipeline("first", store=MemoryStore())
    first.source(FileSource(folder, format=format_, bounded=True), parallelism=2).sink(
        FileSink("files", tmp_path / "out", format=format_)
    )
    first.run()
    failing = [True]

    def once(record: dict[str, Any]) -> dict[str, Any]:
        if failing and record["n"] == 333:
            failing.clear()
            raise ValueError("told to fail")
        return record

    second = pipeline("second", store=store, checkpointing=CheckpointConfig(interval=0.01))
    second.source(FileSource(tmp_path / "out", format=format_, bounded=True), parallelism=3).map(once).sink(
        TargetSink(target)
    )
    second.run()
    assert target.counts("n") == Counter(range(500))


@pytest.mark.parametrize("format_", ["csv", "jsonl"])
def test_an_empty_file_has_no_rows_and_keeps_nothing_behind_it_from_being_read(tmp_path: Path, format_: FileFormat):
    (tmp_path / f"a.{format_}").touch()
    with pytest.raises(ConfigurationError, match="no file yet, or empty ones only"):
        FileSource(tmp_path, format=format_).validate()
    time.sleep(0.01)
    put(tmp_path, "b", range(3), format_)
    source = FileSource(tmp_path, format=format_)
    position = source.latest({})
    assert rows(source, {}, position) == [0, 1, 2]
    put(tmp_path, "a", range(3, 5), format_)  # somebody opens first, and writes later
    assert rows(source, position, source.latest(position)) == [3, 4]


@pytest.mark.parametrize(("format_", "text"), [("parquet", ""), ("jsonl", '{"n": 1')])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, format_: FileFormat, text: str):
    put(tmp_path, "a", range(3), format_)
    source = FileSource(tmp_path, format=format_)
    source.validate()
    (tmp_path / f"b.{format_}").write_text(text)
    with pytest.raises(SourceError, match=rf"b\.{format_}"):
        rows(source, {}, source.latest({}))


def test_a_file_whose_name_is_not_utf8_is_refused_by_name(tmp_path: Path):
    put(tmp_path, "a", range(3), "csv")
    (tmp_path / os.fsdecode(b"\xff.csv")).write_text("n\n1\n")
    with pytest.raises(SourceError, match=r"\\udcff\.csv' is not UTF-8: rename"):
        FileSource(tmp_path, format="csv").validate()


def written(folder: Path, batch: pa.RecordBatch, epoch: int = 1, **options: Any) -> None:
    sink = FileSink("files", folder, **options)
    sink.validate(batch.schema)
    sink.commit(prepared(sink, batch, epoch=epoch))


def read_back(source: FileSource) -> list[dict[str, Any]]:
    source.validate()
    splits = source.splits({}, source.latest({}))
    return [row for split in splits for piece in source.read(split) for row in piece.batch.to_pylist()]


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize(
    "texts",
    [["x", None, "", "y"], ["NA", "null", "true"], ["a\nb", "\n\n", "c"], ["x" * 2_500_000, "y"]],
    ids=["null and empty", "words for null", "newlines", "2.5 MB"],
)
def test_texts_that_a_file_sink_wrote_are_read_as_they_were(
    tmp_path: Path, format_: FileFormat, texts: list[str | None]
):
    batch = pa.record_batch({"text": texts, "n": list(range(len(texts)))})
    written(tmp_path, batch, format=format_)
    assert read_back(FileSource(tmp_path, format=format_)) == batch.to_pylist()


@pytest.mark.parametrize(
    "text", ['{"n": 2}', '{"n": 2} ', '{"n": 2}\n', '\n{"n": 2}', '{"n": 2, "t": "%s"}' % ("x" * 2**21)]
)
@pytest.mark.parametrize("schema", [None, pa.schema({"n": pa.int64()})])
def test_a_row_of_json_whose_line_does_not_end_is_read(tmp_path: Path, text: str, schema: pa.Schema | None):
    (tmp_path / "a.jsonl").write_text(text)
    assert [row["n"] for row in read_back(FileSource(tmp_path, format="jsonl", schema=schema))] == [2]


@pytest.mark.parametrize("late", ['{"n": 2, "new": 1}', '{"s": [{"a": 1, "new": 1}]}'])
def test_a_field_of_json_lines_that_comes_late_is_not_lost(tmp_path: Path, late: str):
    """Arrow looks at the first block for fields, and drops others."""
    lines = ['{"n": 1, "s": [{"a": 1}]}', " " * 2**20, late]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    with pytest.raises(SourceError, match=r"a\.jsonl has fields that the beginning of the oldest file.*give schema="):
        read_back(FileSource(tmp_path, format="jsonl"))
    chosen = FileSource(tmp_path, format="jsonl", schema=pa.schema({"n": pa.int64()}))
    assert len(read_back(chosen)) == 2


@pytest.mark.parametrize("format_", ["jsonl", "parquet", "arrow"])
def test_a_field_of_a_struct_that_the_oldest_file_does_not_have_is_not_lost(tmp_path: Path, format_: FileFormat):
    written(tmp_path, pa.record_batch({"s": [[{"a": 1}]]}), format=format_)
    source = FileSource(tmp_path, format=format_)
    source.validate()
    written(tmp_path, pa.record_batch({"s": [[{"a": 1, "b": 2}]]}), 2, format=format_)
    with pytest.raises(SourceError, match=r"has columns \['s\.b'\], which the oldest file does not have: give schema="):
        source.latest({})


@pytest.mark.parametrize("format_", ["arrow", "parquet"])
def test_views_are_read_as_texts_and_bytes_of_which_a_part_can_be_taken(tmp_path: Path, format_: FileFormat):
    rows = {"n": [1, 2, 3], "text": pa.array(["a", None, ""], pa.string_view())}
    rows |= {"list": pa.array([[b"a"], None, [None]], pa.list_(pa.binary_view()))}
    batch = pa.record_batch(rows)
    written(tmp_path, batch, format=format_)
    target = Target()
    p = pipeline(parallelism=2)
    read = p.source(FileSource(tmp_path, format=format_, bounded=True)).filter(lambda record: record["n"] > 1)
    read.key_by("text").map(dict).sink(TargetSink(target))
    p.run()
    assert sorted(target.rows, key=lambda row: row["n"]) == batch.to_pylist()[1:]


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64()])
def test_dates_that_a_file_sink_wrote_as_json_are_read_as_they_were(tmp_path: Path, kind: pa.DataType):
    rows = pa.record_batch({"day": pa.array([date(1, 1, 1), None, date(9999, 12, 31)], kind), "n": [1, 2, 3]})
    written(tmp_path, rows, format="jsonl")
    assert read_back(FileSource(tmp_path, format="jsonl", schema=rows.schema)) == rows.to_pylist()


@pytest.mark.parametrize("kind", [pa.binary(), pa.list_(pa.binary()), pa.struct({"at": pa.time64("us")})])
def test_what_json_holds_as_text_is_not_taken_for_what_it_stands_for(tmp_path: Path, kind: pa.DataType):
    """Arrow would read AP8= as these four letters, not as the two bytes that a file sink has written."""
    (tmp_path / "a.jsonl").write_text('{"x": null}\n')
    source = FileSource(tmp_path, format="jsonl", schema=pa.schema([("x", kind)]))
    with pytest.raises(ConfigurationError, match=r"schema: column 'x' is .*JSON lines hold bytes .*: give string"):
        source.end()


def test_a_time_of_day_in_the_name_of_a_folder_of_json_is_read(tmp_path: Path):
    batch = pa.record_batch({"n": [1], "at": pa.array([3_600_000_000], pa.time64("us"))})
    written(tmp_path, batch, format="jsonl", partition_by=["at"])
    assert read_back(FileSource(tmp_path, format="jsonl", schema=batch.schema)) == batch.to_pylist()


def test_floats_that_a_file_sink_wrote_as_csv_are_read_as_they_were(tmp_path: Path):
    written(
        tmp_path, pa.record_batch({"real": [1.5, math.nan, math.inf, -math.inf, None], "n": range(5)}), format="csv"
    )
    found = [row["real"] for row in read_back(FileSource(tmp_path, format="csv"))]
    assert math.isnan(found.pop(1))
    assert found == [1.5, math.inf, -math.inf, None]


def test_a_csv_file_may_have_lines_within_values_across_blocks(tmp_path: Path):
    texts = [f"{number}:" + "ab\n" * (number * 7919 % 60) for number in range(20_000)]  # 1.8 MB
    batch = pa.record_batch({"text": texts, "n": range(len(texts))})
    written(tmp_path, batch, format="csv")
    assert read_back(FileSource(tmp_path, format="csv")) == batch.to_pylist()


def test_an_empty_line_of_a_csv_file_with_one_column_is_a_null(tmp_path: Path):
    """With more columns it is no row."""
    (tmp_path / "a.csv").write_text("word\nx\n\ny\n")
    assert read_back(FileSource(tmp_path, format="csv")) == [{"word": "x"}, {"word": None}, {"word": "y"}]
    (tmp_path / "a.csv").write_text("word,n\nx,1\n\ny,2\n")
    assert read_back(FileSource(tmp_path, format="csv")) == [{"word": "x", "n": 1}, {"word": "y", "n": 2}]


def test_a_file_that_an_earlier_version_counted_otherwise_is_not_read_on(tmp_path: Path):
    """Only in the middle of a file does it matter."""
    (tmp_path / "a.csv").write_text("word\nx\n\ny\n")
    source, about = FileSource(tmp_path, format="csv"), _stat(tmp_path / "a.csv")
    with pytest.raises(SourceError, match=r"a\.csv has 3 rows, and 2 when its reading began"):
        source.latest({"a.csv": [1, 2, *about]})
    for position in ({"a.csv": [2, 2, *about]}, {"a.csv": [3, 3, *about]}):
        assert source.latest(position) == position
    assert source.latest({"a.csv": [1, 3, *about]}) == {"a.csv": [3, 3, *about]}


@pytest.mark.parametrize("format_", FORMATS)
def test_partitions_are_read_if_the_schema_names_them(tmp_path: Path, format_: FileFormat):
    batch = pa.record_batch({"k": ["u/v", None], "day": [date(2026, 1, 2)] * 2, "n": [1, 2]})
    written(tmp_path, batch, format=format_, partition_by=["k", "day"])
    with pytest.raises(ConfigurationError, match=r"columns \['day', 'k'\].*give schema="):
        FileSource(tmp_path, format=format_).validate()
    found = read_back(FileSource(tmp_path, format=format_, schema=batch.schema))
    assert sorted(found, key=lambda row: row["n"]) == batch.to_pylist()
    found = read_back(FileSource(tmp_path, format=format_, schema=pa.schema({"n": pa.int64()})))
    assert sorted(row["n"] for row in found) == [1, 2]


@pytest.mark.parametrize("format_", FORMATS)
def test_partitions_of_decimals_are_read(tmp_path: Path, format_: FileFormat):
    """pyarrow.dataset itself makes no decimal of a folder's name."""
    cents = pa.array([Decimal("1.20"), Decimal("-0.01"), None], pa.decimal128(10, 2))
    batch = pa.record_batch({"cents": cents, "n": [1, 2, 3]})
    written(tmp_path, batch, format=format_, partition_by=["cents"])
    found = read_back(FileSource(tmp_path, format=format_, schema=batch.schema))
    assert sorted(found, key=lambda row: row["n"]) == batch.to_pylist()


@pytest.mark.parametrize("format_", FORMATS)
def test_a_file_with_more_columns_than_the_oldest_is_refused(tmp_path: Path, format_: FileFormat):
    written(tmp_path, pa.record_batch({"n": [1]}), format=format_)
    source = FileSource(tmp_path, format=format_, bounded=True)
    position = source.latest({})
    source.validate()
    written(tmp_path, pa.record_batch({"n": [2], "new": ["x"]}), 2, format=format_)
    for part in (source, source.share(0, 1)):
        with pytest.raises(SourceError, match=rf"~2~.*{format_}.*columns \['new'\].*give schema="):
            part.latest(position)
    chosen = FileSource(tmp_path, format=format_, schema=pa.schema({"n": pa.int64()}))
    assert sorted(rows(chosen, {}, chosen.latest({}))) == [1, 2]


@pytest.mark.parametrize("metadata", ["_spark_metadata", "_delta_log"])
def test_a_folder_in_which_not_all_files_count_is_refused(tmp_path: Path, metadata: str):
    """Spark's file sink leaves files of failed tasks, and a table those whose rows were deleted since."""
    put(tmp_path, "a", range(3))
    (tmp_path / metadata).mkdir()
    with pytest.raises(ConfigurationError, match=r"only the files that .* Give another folder"):
        FileSource(tmp_path).validate()


@pytest.mark.parametrize(
    "values",
    [
        pa.array([math.nan, math.inf, -math.inf, -0.0, 1e10, 0.0009, None]),
        pa.array([0.1, math.nan, 1e-45], pa.float32()),
        pa.array([500_000, -1, None], pa.timestamp("us")),
        pa.array([500_000, -1], pa.timestamp("us", "UTC")),
        pa.array([10_000_000, 0], pa.time64("us")),
        pa.array([0, 20_000], pa.date32()),
    ],
    ids=lambda values: str(values.type),
)
def test_columns_that_are_folders_have_the_values_that_were_written(tmp_path: Path, values: pa.Array):
    batch = pa.record_batch({"n": list(range(len(values))), "v": values})
    sink = FileSink("files", tmp_path, partition_by=["v"])
    sink.commit(prepared(sink, batch))
    source = FileSource(tmp_path, schema=batch.schema)
    splits = source.splits({}, source.latest({}))
    found = pa.Table.from_batches([piece.batch for split in splits for piece in source.read(split)])
    texts = found.sort_by("n")["v"].cast(pa.string()).to_pylist()
    assert texts == values.cast(pa.string()).to_pylist()
