"""Folders in which readers would not see what FileSink writes, because something else decides what they see.

1. Readers of a table take the files that its metadata name, and its maintenance deletes all others (Delta Lake's
   VACUUM, Iceberg's remove_orphan_files), also in the folders below the table's.
2. Spark takes the files that `_spark_metadata` lists, if it reads the folder that its own file sink wrote.
3. Spark finds partitions by the names of folders. If they differ in columns, or in depth, it refuses to read any of
   them, or reads the deepest ones and leaves out files beside them (measured on Spark 4.2).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from onceward.core.errors import ConfigurationError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SPARK: Final = "_spark_metadata"
_TABLES: Final = {
    "_delta_log": "a Delta Lake table",
    ".hoodie": "a Hudi table",
    "metadata/version-hint.text": "an Iceberg table",
    "metadata/*.metadata.json*": "an Iceberg table",
}
"""Kinds of tables, by the pattern of a path that the folder of such a table holds."""


_DATA: Final = {
    "parquet": {".parquet", ".parq", ".pq"},
    "csv": {".csv"},
    "jsonl": {".json", ".jsonl", ".ndjson"},
    "arrow": {".arrow", ".feather"},
}
"""Extensions of data files by format; another may follow (`.csv.gz`)."""
_UNFINISHED: Final = {"._copying_", ".crdownload", ".filepart", ".inprogress", ".part", ".partial", ".temp", ".tmp"}
"""Extensions under which programs write files that they rename when they are complete."""


def check_tables(folder: Path) -> None:
    """Refuse a folder in which only the files that somebody's metadata list count as rows.

    Raises:
        ConfigurationError: The folder is, or lies in, that of a table, or Spark's file sink wrote into it.
    """
    folder = folder.resolve()
    for place in (folder, *folder.parents):
        for pattern, table in _TABLES.items():
            if any(place.glob(pattern)):
                raise ConfigurationError(
                    f"{folder} belongs to {table} in {place}: only the files that the table's metadata name are its "
                    "rows, and its maintenance may delete all others. Give another folder"
                )
    if (folder / SPARK).exists():
        raise ConfigurationError(
            f"{folder} was written by Spark's file sink: Spark reads only the files that {SPARK} lists, and failed "
            "tasks may have left others. Give another folder; or end that query, delete the files that are not listed, "
            f"and move {folder / SPARK} away"
        )


def file_format_of(path: Path) -> str | None:
    """Return the format that a file's content or its name shows; None if neither does.

    Raises:
        OSError: The file cannot be opened.
    """
    with path.open("rb") as file:
        begin = file.read(6)
    for magic, name in _MAGIC.items():
        if begin.startswith(magic):
            return name
    suffixes = {suffix.lower() for suffix in path.suffixes[-2:]}
    return next((name for name, known in _DATA.items() if name in _TEXTS and suffixes & known), None)


_MAGIC: Final = {b"PAR1": "parquet", b"ARROW1": "arrow"}
_TEXTS: Final = ("csv", "jsonl")


def check_name(path: Path, format_: str) -> None:
    """Refuse a file whose name says that its rows are none of a source's.

    Raises:
        SourceError: It is a file of another format, or one that is still being written.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    others = {suffix: name for name, known in _DATA.items() if name != format_ for suffix in known}
    if other := others.get(suffixes[-1] if suffixes else ""):
        why = f"is called as a file in the format {other!r} is, and not as one in {format_!r}"
    elif suffixes and suffixes[-1] in _UNFINISHED:
        why = "is called as a file is that is still being written"
    else:
        return
    raise SourceError(
        f"{path} {why}: remove it, or leave such files out, for example with pattern={_EXAMPLES[format_]!r}"
    )


_EXAMPLES: Final = {"parquet": "*.parquet", "csv": "*.csv", "jsonl": "*.json*", "arrow": "*.arrow"}


def check_partition_folders(folder: Path, columns: Sequence[str], format_: str) -> None:
    """Refuse a folder whose files are not partitioned by exactly these columns, in this order.

    Args:
        folder: The folder; it need not exist.
        columns: Names of the columns, as in the names of folders.
        format_: Format of the files that will be written.

    Raises:
        ConfigurationError: The message names a file or folder that does not fit.
    """
    other = next(_misplaced(folder, columns, _DATA[format_]), None)
    if other is None:
        return
    expected = "/".join(f"{column}=…" for column in columns) or "no folders"
    raise ConfigurationError(
        f"{other} does not fit partition_by, which makes {expected}: Spark would refuse to read {folder}, or leave out "
        "rows. Set partition_by to the columns by which the folder is partitioned, or give another folder"
    )


def _misplaced(folder: Path, columns: Sequence[str], data: set[str]) -> Iterator[Path]:
    """Yield paths whose rows readers take for those of other partitions; open one fitting folder a level."""
    if not folder.is_dir():
        return
    fits: str | None = None
    with os.scandir(folder) as entries:
        for entry in entries:
            path = Path(entry.path)
            if _is_hidden(entry.name):
                continue
            if columns and entry.name.startswith(f"{columns[0]}="):
                fits = entry.path
            elif entry.is_dir():
                if (columns or "=" in entry.name) and _has_files(path):
                    yield path
            elif columns and data.intersection(path.suffixes):
                yield path
    if fits is not None:
        yield from _misplaced(Path(fits), columns[1:], data)


def _has_files(folder: Path) -> bool:
    for _, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not _is_hidden(name)]
        if not all(map(_is_hidden, files)):
            return True
    return False


def _is_hidden(name: str) -> bool:
    return name.startswith(("_", "."))
