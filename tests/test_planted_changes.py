"""Changes that a generator plants: each is found by `onceward verify`, or listed as what it cannot find.

The oracle is the folder itself: a reader of its rows and types sees a change, or does not.
"""

from __future__ import annotations

import shutil
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from .verify_kit import FORMATS, FileJob

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

EPOCHS, ROWS = 3, 10
WORDS = ["", "a", "b ", "a\u0308", "ä", "0", "NULL"]


def rows_of(random: Random) -> Callable[..., pa.RecordBatch]:
    """Return what makes an epoch's rows, with few different values, so that changes collide."""

    def make(*numbers: int) -> pa.RecordBatch:
        count = len(numbers)
        return pa.record_batch(
            {
                "id": pa.array(numbers, pa.int64()),
                "small": pa.array([random.choice([None, 0, 1, -1]) for _ in range(count)], pa.int32()),
                "word": pa.array([random.choice([None, *WORDS]) for _ in range(count)], pa.string()),
                "real": pa.array([random.choice([None, 0.0, 1.5, 1e300]) for _ in range(count)], pa.float64()),
                "yes": pa.array([random.choice([None, True, False]) for _ in range(count)], pa.bool_()),
                "day": pa.array([random.choice([None, 0, 20_000]) for _ in range(count)], pa.int32()).cast(pa.date32()),
                "at": pa.array([random.choice([None, 0, 10**15]) for _ in range(count)], pa.timestamp("us", "UTC")),
                "cents": pa.array([random.choice([None, 0, 150]) for _ in range(count)]).cast(pa.decimal128(19, 0)),
            }
        )

    return make


def table_in(path: Path) -> pa.Table:
    if path.suffix == ".parquet":
        return pyarrow.parquet.ParquetFile(path).read()
    return pa.ipc.open_file(path.read_bytes()).read_all()


def put(path: Path, table: pa.Table, **options: Any) -> None:
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path, **options)
    else:
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table)


def a_cell(random: Random, path: Path) -> bool:
    """Change one value to one of its neighbors, or to null."""
    table = table_in(path)
    place = random.randrange(table.num_columns)
    values = table.column(place).to_pylist()
    at = random.randrange(len(values))
    others = [value for value in {*table.column(place).to_pylist(), None} if value != values[at]]
    if not others:
        return False
    values[at] = random.choice(sorted(others, key=repr))
    field = table.schema.field(place)
    put(path, table.set_column(place, field, pa.array(values, field.type)))
    return True


def a_swap(random: Random, path: Path) -> bool:
    """Exchange the values of one column between two rows."""
    table = table_in(path)
    place = random.randrange(1, table.num_columns)
    values = table.column(place).to_pylist()
    one, two = random.sample(range(len(values)), 2)
    if values[one] == values[two]:
        return False
    values[one], values[two] = values[two], values[one]
    field = table.schema.field(place)
    put(path, table.set_column(place, field, pa.array(values, field.type)))
    return True


def a_row_less(random: Random, path: Path) -> bool:
    table = table_in(path)
    gone = random.randrange(table.num_rows)
    put(path, pa.concat_tables([table.slice(0, gone), table.slice(gone + 1)]))
    return True


def a_row_more(random: Random, path: Path) -> bool:
    table = table_in(path)
    put(path, pa.concat_tables([table, table.slice(random.randrange(table.num_rows), 1)]))
    return True


def two_columns_exchanged(random: Random, path: Path) -> bool:
    """Exchange the names of two columns."""
    table = table_in(path)
    names = list(table.schema.names)
    one, two = random.sample(range(len(names)), 2)
    if set(table.column(one).to_pylist()) | set(table.column(two).to_pylist()) == {None}:
        return False
    names[one], names[two] = names[two], names[one]
    put(path, table.rename_columns(names))
    return True


TYPES = {
    "id": pa.float64(),
    "small": pa.float32(),
    "word": pa.binary(),
    "yes": pa.int8(),
    "day": pa.int32(),
    "at": pa.timestamp("us"),
    "cents": pa.int64(),
}


def a_type(random: Random, path: Path) -> bool:
    """Rewrite a column in a type of another kind that holds the same values."""
    table = table_in(path)
    name = random.choice(sorted(TYPES))
    put(path, table.set_column(table.schema.get_field_index(name), name, table[name].cast(TYPES[name])))
    return True


def a_file_less(_: Random, path: Path) -> bool:
    path.unlink()
    return True


def a_copy(random: Random, path: Path) -> bool:
    names = ["part-00000", f"copy{path.suffix}", f"X{path.suffix.upper()}", f"{path.name}.bak", "more.tmp", "in/side"]
    copy = path.parent / random.choice(names)
    copy.parent.mkdir(exist_ok=True)
    shutil.copy(path, copy)
    return True


def a_copy_in_place_of_another(random: Random, path: Path) -> bool:
    """Put a file in the place of another epoch's, which two copies of a file and a lost one look like."""
    others = [other for other in path.parent.glob(f"*{path.suffix}") if other != path]
    shutil.copy(random.choice(others), path)
    return True


def cut(random: Random, path: Path) -> bool:
    data = path.read_bytes()
    path.write_bytes(data[: random.randrange(len(data))])
    return True


FOUND = [
    *(a_cell, a_swap, a_row_less, a_row_more, two_columns_exchanged, a_type),
    *(a_file_less, a_copy, a_copy_in_place_of_another, cut),
]


@pytest.mark.parametrize("change", FOUND)
@pytest.mark.parametrize("format_", ["parquet", "arrow"])
@pytest.mark.parametrize("seed", range(4))
def test_a_planted_change_of_a_folder_is_found(tmp_path: Path, format_: str, change: Any, seed: int) -> None:
    random = Random(f"{change.__name__} {seed}")
    job = FileJob(tmp_path, format=format_)
    job.run(EPOCHS, make=rows_of(random))
    job.told()
    for _ in range(20):
        if change(random, random.choice(sorted(job.out.glob(f"*.{format_}")))):
            break
    else:
        pytest.fail("no change")
    job.told(code=1)


def the_order(random: Random, table: pa.Table) -> pa.Table:
    """Hashes add up, so the order of rows makes no difference."""
    order = list(range(table.num_rows))
    random.shuffle(order)
    return table.take(order)


def the_order_of_columns(random: Random, table: pa.Table) -> pa.Table:
    """Each value is hashed with its column's name."""
    return table.select(random.sample(table.schema.names, table.num_columns))


def a_width(_: Random, table: pa.Table) -> pa.Table:
    """Equal numbers hash alike, whatever the width of their type."""
    return table.set_column(table.schema.get_field_index("small"), "small", table["small"].cast(pa.int64()))


def a_precision(_: Random, table: pa.Table) -> pa.Table:
    """Equal decimals hash alike, whatever their scale."""
    place = table.schema.get_field_index("cents")
    return table.set_column(place, "cents", table["cents"].cast(pa.decimal128(30, 2)))


def a_zone(_: Random, table: pa.Table) -> pa.Table:
    """Equal instants hash alike, whatever the zone in which they are shown."""
    return table.set_column(table.schema.get_field_index("at"), "at", table["at"].cast(pa.timestamp("ms", "+02:00")))


def a_column_of_nulls(_: Random, table: pa.Table) -> pa.Table:
    """Nulls do not enter the hash."""
    return table.append_column("more", pa.nulls(table.num_rows, pa.string()))


def metadata(_: Random, table: pa.Table) -> pa.Table:
    """Only rows are hashed."""
    return table.replace_schema_metadata({"who": "somebody"})


CANNOT = [the_order, the_order_of_columns, a_width, a_precision, a_zone, a_column_of_nulls, metadata]
"""What `verify` cannot find; the functions say why. The page says so, too (docs/verify.md)."""


@pytest.mark.parametrize("change", CANNOT)
@pytest.mark.parametrize("format_", ["parquet", "arrow"])
def test_what_cannot_be_found_is_listed_here(tmp_path: Path, format_: str, change: Any) -> None:
    random = Random(0)
    job = FileJob(tmp_path, format=format_)
    job.run(EPOCHS, make=rows_of(random))
    path = job.file(1)
    put(path, change(random, table_in(path)))
    job.told()


@pytest.mark.parametrize("format_", sorted(set(FORMATS) - {"parquet", "arrow"}))
@pytest.mark.parametrize("seed", range(12))
def test_a_changed_byte_of_a_text_is_found(tmp_path: Path, format_: str, seed: int) -> None:
    """Of a value's own characters; quotes, which only some readers need, are left out."""
    random = Random(seed)
    job = FileJob(tmp_path, format=format_)
    job.run(EPOCHS, make=rows_of(random))
    path = random.choice(sorted(job.out.glob(f"*.{format_}")))
    data = bytearray(path.read_bytes())
    head = data.index(b"\n") + 1 if format_ == "csv" else 0
    at = random.choice([n for n in range(head, len(data)) if chr(data[n]).isalnum() and data[n] < 128])
    data[at] = random.choice([b for b in b"abcxyz0123456789" if b != data[at]])
    path.write_bytes(data)
    job.told(code=1)
