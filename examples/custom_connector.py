"""The connector of JsonLinesSink: what `onceward txn`, `doctor` and `verify` and Spark know of its folders."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from custom_sink import JsonLinesSink

from onceward.connectors import Connector, Finding, Place, Reread, RereadPiece, Target, failed, ok
from onceward.sinks import Scope, Sink, TransactionName, parse_file_name
from onceward.sources import ResettableSource


class JsonLinesConnector(Connector):
    """A folder of JSON lines: `--at json-lines=FOLDER`, and what it holds is `json-lines:rows`."""

    name = "json-lines"  # of the entry point, too; the format is "onceward-json-lines"
    sink = "custom_sink:JsonLinesSink"
    address_form = "FOLDER"
    place_form = "rows"

    def target(self) -> Target:
        """Return the folder for `onceward txn`, which lists and ends what any pipeline has prepared in it."""
        folder = Path(self.address)
        return Target(
            title=f"JSON lines in {folder}",
            names=lambda _: {name.scope[:2] for name in _names(folder, "_*.pending")},
            known=lambda pipeline: {
                name.scope.sink for name in _names(folder, "*.jsonl") if name.scope.pipeline == pipeline
            },
            holds=lambda kind, _: kind == "json-lines",
            sink=lambda name: JsonLinesSink(name, folder),
        )

    def place(self, name: str) -> Place:
        """Return what the folder holds, for `onceward verify`."""
        return JsonLinesRows(f"{self.name}:{name}", Path(self.address))

    def check(self, names: Sequence[str], pipeline: str | None) -> Iterator[Finding]:
        """Report what the sink's `validate` would refuse, for `onceward doctor`. Changes nothing."""
        folder = Path(self.address)
        if not folder.is_dir():
            yield failed("folder", f"{folder} is not a folder", "create it, or correct the path")
        elif not os.access(folder, os.W_OK | os.X_OK):
            yield failed("folder", f"{folder} is not writable", "make it writable for the executors and the driver")
        else:
            yield ok("folder", f"{folder} is writable")

    @classmethod
    def check_parts(
        cls, sinks: Sequence[Sink], sources: Sequence[ResettableSource], pipeline: str | None
    ) -> Iterator[Finding]:
        """Check the folders of these sinks, which are of this kind, for `onceward explain`."""
        for sink in sinks:
            if isinstance(sink, JsonLinesSink):
                yield from cls(str(sink.folder)).check((), pipeline)


class JsonLinesRows(Place):
    """The rows that readers of a folder see."""

    def __init__(self, title: str, folder: Path) -> None:
        super().__init__(title)
        self.folder = folder

    def reread(self, scope: Scope | None, columns: Sequence[str]) -> Reread:
        """Read the finished files; each one's name tells the transaction that wrote its rows."""
        files = sorted(self.folder.glob("*.jsonl"))
        names = {path.stem: parse_file_name(path.stem) for path in files}
        epochs = {stem: name.epoch for stem, name in names.items() if name is not None and name.scope == scope}
        pieces = (_piece(path) for path in files)
        return Reread(pieces, epochs, pa.schema({"line": pa.string()}), lambda mark: mark not in epochs)

    def as_hashed(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Return rows of a source as the sink hashes them: as lines."""
        return pa.RecordBatch.from_pydict({"line": [json.dumps(row, default=str) for row in batch.to_pylist()]})


def _piece(path: Path) -> RereadPiece:
    lines = path.read_text().splitlines()
    where = [f"{path.name}:{number}" for number in range(1, len(lines) + 1)]
    return RereadPiece(
        pa.RecordBatch.from_pydict({"line": pa.array(lines, pa.string())}), [path.stem] * len(lines), where
    )


def _names(folder: Path, pattern: str) -> Iterator[TransactionName]:
    for path in folder.glob(pattern):
        name = parse_file_name(path.stem.removeprefix("_"))
        if name is not None:
            yield name
