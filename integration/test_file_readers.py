"""What FileSink writes on Spark, read back by those who will: Spark (batch, stream, by globs), DuckDB, pyarrow, pandas.

Nothing that is pending shows to any of them: each folder holds a prepared transaction that nobody decides.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pytest

from onceward import FileSink
from onceward.connectors.spark import exactly_once
from onceward.connectors.spark.write.spark_task import in_utc
from onceward.core.contract.names import Scope
from onceward.core.contract.transaction import WriteContext

from .spark_kit import Feed

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

FORMATS: Final = ("parquet", "csv", "jsonl", "arrow")
VALUES: Final = [
    "plain",
    "b/c",
    None,
    "",
    "ä€😀 = 1",
    "100%",
    "%41",
    "a:b",
    "?*",
    "{[^]}\\",
    "q\"'",
    "tab\tnl\n",
    "+ ~#",
]
SCHEMA: Final = "id long, word string, k string"
SPARK: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "parquet": ("parquet", {}),
    "csv": (
        "csv",
        {
            "header": "true",
            "multiLine": "true",
            "escape": '"',
            "nanValue": "nan",
            "positiveInf": "inf",
            "negativeInf": "-inf",
        },
    ),
    "jsonl": ("json", {}),
}
DUCKDB: Final = {"parquet": "read_parquet", "csv": "read_csv", "jsonl": "read_json"}
PYARROW: Final = {"parquet": "parquet", "csv": "csv", "jsonl": "json", "arrow": "ipc"}
COLUMNS: Final = pa.schema({"id": pa.int64(), "word": pa.string(), "k": pa.string()})

Rows = list[tuple[int, str, str | None]]


class Written:
    """Folders of each format, with and without partitions."""

    def __init__(self, root: Path, rows: int) -> None:
        self.root = root
        self.rows = rows

    def folder(self, format_: str, *, partitioned: bool) -> Path:
        return self.root / f"{format_}{'-partitioned' if partitioned else ''}"

    def expected(self, *, blank_is_null: bool) -> Rows:
        """In names of folders the empty string is null; so it is in CSV to Spark and DuckDB."""
        values = [value or None for value in VALUES] if blank_is_null else VALUES
        return [(n, f"w{n % 7}", values[n % len(VALUES)]) for n in range(self.rows)]


@pytest.fixture(scope="module")
def written(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Written:
    root = tmp_path_factory.mktemp("readers")
    feed = Feed(root)
    feed.add(30)
    feed.add(30)
    made = Written(root, feed.rows)
    values = spark.createDataFrame(list(enumerate(VALUES)), "number int, k string")
    rows = feed.stream(spark).selectExpr("*", f"id % {len(VALUES)} AS number").join(values, "number").drop("number")
    sinks = [
        FileSink(
            f"{format_}{partitioned:d}",
            made.folder(format_, partitioned=partitioned),
            format=format_,
            partition_by=["k"] if partitioned else [],
        )
        for format_ in FORMATS
        for partitioned in (False, True)
    ]
    writer = exactly_once(rows.select("id", "word", "k"), *sinks, checkpoint=str(root / "checkpoint"), pipeline="files")
    writer.trigger(availableNow=True).start().awaitTermination()
    for sink in sinks:
        leave_pending(sink)
    return made


def leave_pending(sink: FileSink) -> None:
    context = WriteContext(pipeline="other", sink=sink.name, log="0123abcd", generation=1, epoch=1, subtask=0)
    sink.ledger().claim(Scope("other", sink.name, "0123abcd"))
    transaction = sink.begin(context)
    sink.write(transaction, pa.RecordBatch.from_pylist([{"id": 10**6, "word": "x", "k": "a"}], schema=COLUMNS))
    sink.pre_commit(transaction)


def sorted_rows(rows: list[dict[str, Any]]) -> Rows:
    return sorted((row["id"], row["word"], row["k"]) for row in rows)


both = pytest.mark.parametrize("partitioned", [False, True], ids=["flat", "partitioned"])


def load(reader: Any, format_: str, path: str) -> DataFrame:
    source, options = SPARK[format_]
    frame: DataFrame = reader.format(source).schema(SCHEMA).options(**options).load(path)
    return frame


@both
@pytest.mark.parametrize("format_", SPARK)
def test_spark_reads_it(spark: SparkSession, written: Written, format_: str, partitioned: bool) -> None:
    frame = load(spark.read, format_, str(written.folder(format_, partitioned=partitioned)))
    assert sorted_rows([row.asDict() for row in frame.collect()]) == written.expected(
        blank_is_null=partitioned or format_ == "csv"
    )


@pytest.mark.parametrize("format_", SPARK)
@pytest.mark.parametrize("glob", ["*", "*/", "[a-zA-Z_]*"])
def test_spark_reads_it_by_a_glob_that_names_the_pending_folder_too(
    spark: SparkSession, written: Written, format_: str, glob: str
) -> None:
    frame = load(spark.read, format_, f"{written.folder(format_, partitioned=False)}/{glob}")
    assert sorted_rows([row.asDict() for row in frame.collect()]) == written.expected(blank_is_null=format_ == "csv")


@pytest.mark.parametrize("format_", SPARK)
@pytest.mark.parametrize("depth", ["/*/*", "/*/*/*", "/*/*/*/*"])
def test_no_deeper_glob_shows_spark_what_is_pending(
    spark: SparkSession, written: Written, format_: str, depth: str
) -> None:
    frame = load(spark.read, format_, f"{written.folder(format_, partitioned=True)}{depth}")
    ids = [row["id"] for row in frame.collect()]
    assert ids == [] or sorted(ids) == list(range(written.rows))


@pytest.mark.parametrize("format_", SPARK)
def test_spark_finds_the_partitions_by_itself(spark: SparkSession, written: Written, format_: str) -> None:
    source, options = SPARK[format_]
    reader = spark.read.format(source).options(inferSchema="true", **options)
    frame = reader.load(str(written.folder(format_, partitioned=True)))
    assert dict(frame.dtypes)["k"] == "string"
    assert sorted_rows([row.asDict() for row in frame.collect()]) == written.expected(blank_is_null=True)
    frame = reader.option("recursiveFileLookup", "true").load(str(written.folder(format_, partitioned=True)))
    assert sorted(row["id"] for row in frame.collect()) == list(range(written.rows))


def test_spark_reads_all_floats_of_csv_and_an_empty_text_alone_in_its_line(spark: SparkSession, tmp_path: Path) -> None:
    floats, texts = [math.nan, math.inf, -math.inf, 1e-300, None], ["x", "", "y"]
    for name, columns in (("floats", {"real": floats, "id": range(5)}), ("texts", {"word": texts})):
        sink = FileSink(name, tmp_path / name, format="csv")
        context = WriteContext(pipeline="p", sink=name, log="0123abcd", generation=1, epoch=1, subtask=0)
        transaction = sink.begin(context)
        sink.write(transaction, pa.record_batch(columns))
        sink.commit(sink.pre_commit(transaction))
    options = SPARK["csv"][1]
    reader = spark.read.options(**options)
    found = reader.schema("real double, id int").csv(str(tmp_path / "floats")).sort("id").collect()
    assert repr([row["real"] for row in found]) == repr(floats)
    found = spark.read.options(**options).schema("word string").csv(str(tmp_path / "texts")).collect()
    assert [row["word"] for row in found] == ["x", None, "y"]


@both
@pytest.mark.parametrize("format_", SPARK)
def test_spark_reads_it_as_a_stream(
    spark: SparkSession, written: Written, tmp_path: Path, format_: str, partitioned: bool
) -> None:
    frame = load(spark.readStream, format_, str(written.folder(format_, partitioned=partitioned)))
    rows: list[dict[str, Any]] = []
    writer = frame.writeStream.foreachBatch(lambda batch, _: rows.extend(row.asDict() for row in batch.collect()))
    writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()
    assert sorted_rows(rows) == written.expected(blank_is_null=partitioned or format_ == "csv")


@both
@pytest.mark.parametrize("format_", DUCKDB)
def test_duckdb_reads_it(written: Written, format_: str, partitioned: bool) -> None:
    folder = written.folder(format_, partitioned=partitioned)
    scan = f"{DUCKDB[format_]}('{folder}/**/*.{format_}', hive_partitioning=true)"
    found = duckdb.sql(f"SELECT id, word, k FROM {scan} ORDER BY id").fetchall()
    assert found == written.expected(blank_is_null=partitioned or format_ == "csv")


@both
def test_duckdb_reads_the_folder(written: Written, partitioned: bool) -> None:
    folder = written.folder("parquet", partitioned=partitioned)
    found = duckdb.sql(f"SELECT id, word, k FROM read_parquet('{folder}') ORDER BY id").fetchall()
    assert found == written.expected(blank_is_null=partitioned)


@both
@pytest.mark.parametrize("format_", PYARROW)
def test_pyarrow_reads_it(written: Written, format_: str, partitioned: bool) -> None:
    hive = pyarrow.dataset.partitioning(pa.schema({"k": pa.string()}), flavor="hive") if partitioned else None
    kind: Any = PYARROW[format_]
    if format_ == "csv":
        parsing = pyarrow.csv.ParseOptions(newlines_in_values=True)
        converting = pyarrow.csv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False)
        kind = pyarrow.dataset.CsvFileFormat(parse_options=parsing, convert_options=converting)
    folder = written.folder(format_, partitioned=partitioned)
    found = pyarrow.dataset.dataset(folder, format=kind, partitioning=hive, schema=COLUMNS).to_table().to_pylist()
    assert sorted_rows(found) == written.expected(blank_is_null=partitioned)


def test_pandas_reads_parquet_folders(written: Written) -> None:
    flat = pd.read_parquet(written.folder("parquet", partitioned=False))
    assert sorted_rows(flat.to_dict("records")) == written.expected(blank_is_null=False)
    hive = pyarrow.dataset.partitioning(pa.schema({"k": pa.string()}), flavor="hive")
    parts = pd.read_parquet(written.folder("parquet", partitioned=True), partitioning=hive)
    assert sorted_rows(parts.to_dict("records")) == written.expected(blank_is_null=True)


@both
@pytest.mark.parametrize(
    ("format_", "read"),
    [
        ("csv", pd.read_csv),
        ("jsonl", lambda path: pd.read_json(path, lines=True)),
        ("arrow", pd.read_feather),
    ],
    ids=FORMATS[1:],
)
def test_pandas_reads_the_files_of_a_glob(
    written: Written, format_: str, read: Callable[[Path], pd.DataFrame], partitioned: bool
) -> None:
    files = written.folder(format_, partitioned=partitioned).rglob(f"*.{format_}")
    found = pd.concat([read(file) for file in files])
    assert sorted(found["id"]) == list(range(written.rows))


def test_a_folder_of_sparks_file_sink_is_refused_until_its_metadata_are_moved_away(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As docs/how-to/migrate.md says."""
    feed, folder, checkpoint = Feed(tmp_path), tmp_path / "out", str(tmp_path / "checkpoint")
    feed.add(10)
    old = feed.stream(spark).writeStream.format("parquet").partitionBy("word")
    old.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(str(folder)).awaitTermination()
    feed.add(10)
    spark.range(100, 105).selectExpr("id", "'w1' AS word").write.mode("append").parquet(f"{folder}/word=w1/failed")
    for file in (folder / "word=w1" / "failed").glob("part-*"):
        file.rename(folder / "word=w1" / file.name)  # as a task that failed leaves it

    def run(**options: Any) -> None:
        sink = FileSink("files", folder, **options)
        writer = exactly_once(feed.stream(spark), sink, checkpoint=checkpoint, pipeline="moved", adopt=True)
        writer.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(Exception, match=r"was written by Spark's file sink.*move .*_spark_metadata away"):
        run(partition_by=["word"])
    assert not (folder / "_onceward").exists()

    listed = {Path(unquote(urlsplit(uri).path)) for uri in spark.read.parquet(str(folder)).inputFiles()}
    for file in folder.glob("**/*.parquet"):
        if file not in listed:
            file.unlink()
    (folder / "_spark_metadata").rename(tmp_path / "orders_spark_metadata")
    with pytest.raises(Exception, match=r"does not fit partition_by"):
        run()
    run(partition_by=["word"])
    assert sorted(row.id for row in spark.read.parquet(str(folder)).collect()) == list(range(20))


PARTITIONS: Final = {
    "double": [
        "'NaN'",
        "'Infinity'",
        "'-Infinity'",
        "'-0.0'",
        "0.1",
        "0.0009",
        "1e7",
        "9999999",
        "123456789.125",
        "4.9e-324",
    ],
    "float": ["'NaN'", "'-Infinity'", "0.1", "1e10", "1.4E-45", "3.4028235E38"],
    "boolean": ["true", "false"],
    "tinyint": ["-128"],
    "smallint": ["-32768"],
    "int": ["2147483647"],
    "bigint": ["-9223372036854775808"],
    "decimal(10,2)": ["1.5", "-0.01"],
    "decimal(38,18)": ["0", "1e-18"],
    "string": ["'a/b'", "' x '", "'%41'", "'ä'", "'__HIVE_DEFAULT_PARTITION__'", "''"],
    "varchar(5)": ["'ab'"],
    "char(3)": ["'ab'"],
    "date": ["'2026-01-02'", "'0001-01-01'", "'+12026-01-02'"],
    "timestamp": ["'2026-01-02 03:00:00.5 UTC'", "'2026-07-02 03:00:00.000001 UTC'"],
    "timestamp_ntz": ["'2026-01-02 03:00:00'", "'2026-01-02 03:00:00.250001'", "'0001-01-01 00:00:00.1'"],
    "time(6)": ["'10:20:30'", "'00:00:00.25'"],
}
"""Types of Spark that `partition_by` takes, with values."""


@pytest.mark.parametrize("kind", PARTITIONS)
def test_partitions_are_named_as_spark_names_them_and_read_as_the_same_values(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    spark.conf.set("spark.sql.timeType.enabled", "true")
    values = [*(f"CAST({value} AS {kind})" for value in PARTITIONS[kind]), f"CAST(NULL AS {kind})"]
    rows = spark.sql(" UNION ALL ".join(f"SELECT {number} AS n, {value} AS v" for number, value in enumerate(values)))
    rows.write.partitionBy("v").parquet(str(tmp_path / "spark"))
    sink = FileSink("files", tmp_path / "onceward", partition_by=["v"])
    transaction = sink.begin(WriteContext(pipeline="p", sink="files", log="0123abcd", generation=1, epoch=1, subtask=0))
    for batch in map(in_utc, rows.toArrow().to_batches()):
        sink.validate(batch.schema)
        sink.write(transaction, batch)
    sink.commit(sink.pre_commit(transaction))
    folders, expected = ({path.name for path in (tmp_path / name).glob("v=*")} for name in ("onceward", "spark"))
    if kind != "timestamp":  # has its offset, too
        assert folders == expected

    def read(name: str) -> list[str]:
        frame = spark.read.schema(rows.schema).parquet(str(tmp_path / name)).orderBy("n")
        return [row.text for row in frame.selectExpr("CAST(v AS string) AS text").collect()]

    assert read("onceward") == read("spark")
