"""What an earlier release wrote is read, finished and continued; what a later one wrote is refused by its format."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
import tarfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable

from onceward.connectors.database.own_tables import _tables_in
from onceward.connectors.kafka.transaction import Prepared
from onceward.core.engine.state.handles import decode_metadata
from onceward.core.engine.state.store import decode_cells
from onceward.core.errors import LogDamagedError, NewerFormatError, StateDamagedError
from onceward.core.log import open_store, read
from onceward.core.log.entries import decode, encode
from onceward.core.transaction import Committable

from .engine_kit import sums
from .golden import job

if TYPE_CHECKING:
    from collections.abc import Callable

KEPT = Path(job.__file__).parent
RUNS = sorted(KEPT.glob("*.tar.xz"))


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name.removesuffix(".tar.xz"))
def test_a_run_of_an_earlier_release_that_died_after_a_decision_is_continued_exactly(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tarfile.open(run) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    undone = read(open_store("log")).undone
    assert undone, "it died between a decision and its commits"
    release, _, backend = run.name.removesuffix(".tar.xz").partition("-")
    assert release == "0.1"
    job.run(backend)
    expected = sums(job.ROWS)
    rows = [json.loads(line) for file in Path("files").glob("*.jsonl") for line in file.read_text().splitlines()]
    assert Counter(row["n"] for row in rows) == Counter(range(len(job.ROWS)))
    assert {row["n"]: row["sum"] for row in rows} == expected
    totals: Counter[str] = Counter()
    for row in job.ROWS:
        totals[row["k"]] += row["v"]
    with sqlite3.connect("target.db") as connection:
        assert dict(connection.execute("SELECT k, total FROM totals").fetchall()) == totals


def test_entries_of_an_earlier_release_are_written_down_as_they_were() -> None:
    """Writers compare whole bytes, so another spelling of the same entry would be another entry."""
    for run in RUNS:
        with tarfile.open(run) as archive:
            for member in archive.getmembers():
                if member.isfile() and member.name.startswith("./log/"):
                    data = archive.extractfile(member)
                    assert data is not None
                    written = data.read()
                    assert encode(decode(written, int(Path(member.name).name))) == written


def test_committables_of_an_earlier_release_are_read() -> None:
    lines = (KEPT / "0.1-committables.jsonl").read_text().splitlines()
    found = [Committable.from_json(line) for line in lines]
    assert {committable.kind for committable in found} == {"kafka", "sql-prepared", "sql-staged", "files"}
    assert [committable.to_json() for committable in found] == lines
    kafka = next(Prepared.of(committable) for committable in found if committable.kind == "kafka")
    assert kafka is not None
    assert kafka.handle.producer_id >= 0
    assert kafka.partitions


def test_the_ledger_has_the_tables_that_it_had() -> None:
    assert ledger_ddl() == (KEPT / "0.1-ledger.sql").read_text()


def ledger_ddl() -> str:
    tables = _tables_in("onceward", "").metadata.sorted_tables
    made = (CreateTable(table).compile(dialect=postgresql.dialect()) for table in tables)  # type: ignore[no-untyped-call]
    return "".join(re.sub(r"[ \t]+\n", "\n", f"{sql}".strip()) + ";\n\n" for sql in made)


def newer(name: str) -> bytes:
    """As format 2 will be sealed."""
    start, body = f"{name}/2".encode(), b'{"anything": 1}'
    checksum = hashlib.sha256(start + b"\n" + body).hexdigest()
    return start + f" {checksum}\n".encode() + body + b"\n"


@pytest.mark.parametrize(
    ("reading", "what"),
    [
        (lambda: decode(newer("onceward-log"), 3), "entry 3 of the decision log"),
        (lambda: decode_metadata(newer("onceward-checkpoint"), "chk-1/metadata"), "chk-1/metadata"),
        (lambda: list(decode_cells(b"onceward-rows/2\n", "sum.rows")), "sum.rows"),
    ],
    ids=["decision log", "checkpoint", "state"],
)
def test_a_newer_format_is_refused_by_name_and_not_as_damage(reading: Callable[[], object], what: str) -> None:
    with pytest.raises(NewerFormatError, match=rf"{what} .*has format \d, .*reads format 1.*: upgrade onceward"):
        reading()


@pytest.mark.parametrize("data", [b"", b"onceward-log/1", b"onceward-log/ x\n", b"onceward-log/x y\n{}\n", b"\xff\n"])
def test_what_has_no_format_is_damaged(data: bytes) -> None:
    with pytest.raises(LogDamagedError, match="entry 3 of the decision log is damaged"):
        decode(data, 3)
    with pytest.raises(StateDamagedError, match="metadata metadata are damaged"):
        decode_metadata(data, "metadata")


def test_a_committable_of_a_newer_version_is_refused() -> None:
    line = next(line for line in (KEPT / "0.1-committables.jsonl").read_text().splitlines() if '"kafka"' in line)
    newer = msgspec.structs.replace(Committable.from_json(line), version=9)
    with pytest.raises(LogDamagedError, match="version 9"):
        Prepared.of(newer)
