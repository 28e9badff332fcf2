"""Folders of Parquet files as different readers see them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from onceward.testing.pipeline import Endpoint, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from onceward.testing.pipeline import Addresses, Row


@dataclass(frozen=True)
class Files(Endpoint):
    """The folder `out`.

    Args:
        name: For the table.
        listing: The files that a reader takes, from the folder.
    """

    kind: ClassVar[str] = "folder"
    name: str
    listing: Callable[[Path], Sequence[Path]]

    @property
    def title(self) -> str:
        return self.name

    def create(self, addresses: Addresses) -> None:
        (addresses.folder / "out").mkdir(exist_ok=True)

    def feed(self, addresses: Addresses, rows: Sequence[Row]) -> None:
        raise NotImplementedError

    def read(self, addresses: Addresses) -> list[Record]:
        records: list[Record] = []
        for path in self.listing(addresses.folder / "out"):
            if (table := _table(path)) is not None:
                records += [Record(row, f"{path.name}@{number}") for number, row in enumerate(table.to_pylist())]
        return records

    def torn(self, addresses: Addresses) -> list[Path]:
        """List the files that a reader takes and cannot read."""
        return [path for path in self.listing(addresses.folder / "out") if _table(path) is None]


def _table(path: Path) -> pa.Table | None:
    try:
        return pq.read_table(path, partitioning=None)
    except (pa.ArrowInvalid, FileNotFoundError):
        return None


def files_that_are_visible(folder: Path) -> list[Path]:
    """List what any reader takes: all files, without those that are hidden by `_` or `.`."""
    paths = sorted(path for path in folder.rglob("*.parquet") if path.is_file())
    return [path for path in paths if not any(p.startswith(("_", ".")) for p in path.relative_to(folder).parts)]


def files_of_spark(folder: Path) -> list[Path]:
    """List the files of the log `_spark_metadata` (FileStreamSinkLog): the newest compact one, and those after it."""
    log = folder / "_spark_metadata"
    entries = {int(path.name.partition(".")[0]): path for path in log.glob("[0-9]*")} if log.exists() else {}
    compact = max((number for number, path in entries.items() if path.suffix == ".compact"), default=0)
    paths: list[Path] = []
    for number, path in sorted(entries.items()):
        if number >= compact:
            actions = [json.loads(line) for line in path.read_text().splitlines()[1:]]  # the first line is a version
            paths += [_local(action["path"], folder) for action in actions if action["action"] == "add"]
    return paths


def files_of_delta(folder: Path) -> list[Path]:
    """List the files of a Delta table's log."""
    paths: dict[str, Path] = {}
    for path in sorted((folder / "_delta_log").glob("*.json")):
        for line in path.read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                paths[action["add"]["path"]] = _local(action["add"]["path"], folder)
            if "remove" in action:
                paths.pop(action["remove"]["path"], None)
    return list(paths.values())


def _local(uri: str, folder: Path) -> Path:
    return folder / unquote(urlsplit(uri).path)
