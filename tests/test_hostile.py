"""Values that somebody has put in the place of others: altered committables, staged rows, marks, names of files."""

from __future__ import annotations

import json
import os
import zlib
from contextlib import suppress
from itertools import product
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest

from onceward import Pipeline
from onceward.connectors.files.sink import FileSink
from onceward.connectors.http.sink import HttpSink
from onceward.core.contract.names import NOTHING, Scope
from onceward.core.contract.transaction import CommitStatus, Committable, Observation
from onceward.core.errors import ConfigurationError, EpochConflictError, LogDamagedError, OncewardError, SqlError
from onceward.core.log import open_store
from onceward.core.log.entries import Decide, Start
from onceward.core.log.view import fold

from .hostile import TEXTS, VALUES, check_altered
from .http_kit import Inbox
from .sink_kit import LOG, Mailbox, prepared
from .sqlite_kit import Database, context, expected, words, write

if TYPE_CHECKING:
    from pathlib import Path

    from onceward.sinks import TwoPhaseCommitSink


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in sorted(folder.rglob("*"))}


def folder_sink(kind: str, folder: Path, inbox: Inbox) -> TwoPhaseCommitSink[Any]:
    if kind == "files":
        return FileSink("s", folder, format="jsonl")
    return HttpSink("s", folder, url=inbox.url) if kind == "http" else Mailbox(folder, name="s")


@pytest.mark.parametrize("kind", ["files", "http", "write-ahead-log"])
def test_an_altered_committable_of_a_folder_is_refused_and_touches_nothing(kind: str, tmp_path: Path) -> None:
    inbox = Inbox()
    with inbox.up():
        sink = folder_sink(kind, tmp_path / "a" / "out", inbox)
        good, other = prepared(sink, range(3)), prepared(sink, range(3, 6), epoch=2)
        check_altered(sink, good, lambda: (files_in(tmp_path), len(inbox.posts)), {"rows", "proof", "handle"})
        for fields in ({"handle": {}}, {"transaction": other.transaction}):
            with pytest.raises(LogDamagedError):
                sink.commit(msgspec.structs.replace(good, **fields))
        assert [sink.commit(c).status for c in (good, other)] == [CommitStatus.COMMITTED] * 2


@pytest.mark.parametrize("kind", ["files", "http", "write-ahead-log"])
def test_an_altered_handle_of_a_folder_is_refused_or_commits_what_was_prepared(kind: str, tmp_path: Path) -> None:
    inbox = Inbox()
    with inbox.up():
        sink = folder_sink(kind, tmp_path / "a" / "out", inbox)
        names = msgspec.to_builtins(prepared(sink, range(3))).get("handle", {})
        for epoch, (name, value) in enumerate(product(names, VALUES), 2):
            good = prepared(sink, range(3), epoch=epoch)
            bad = json.dumps({**msgspec.to_builtins(good), "handle": {**good.handle, name: value}})
            with suppress(OncewardError):
                sink.commit(Committable.from_json(bad))
        values = (
            {"body": "x"},
            {"body": None},
            {"key_format": []},
            {"key_header": "a\r\nb"},
            {"key_header": 7},
            {"x": 1},
        )
        for epoch, pinned in enumerate(values, 1000) if kind == "http" else ():
            good = prepared(sink, range(3), epoch=epoch)
            bad = msgspec.structs.replace(good, handle={**good.handle, "pinned": pinned})
            with suppress(OncewardError):
                sink.commit(bad)
    assert all(request.rows == [{"n": n} for n in range(3)] or not request.rows for request in inbox.taken)
    assert set(tmp_path.iterdir()) == {tmp_path / "a"}
    assert set((tmp_path / "a").iterdir()) == {tmp_path / "a" / "out"}


@pytest.mark.parametrize(
    "name", ["a\n/../../b", "..", ".", "", "a/..", "a//b", "/etc/passwd", "nul\0inside", "a/", "a/."]
)
def test_a_committable_names_no_file_outside_its_folder(tmp_path: Path, name: str) -> None:
    sink = FileSink("s", tmp_path / "out", format="jsonl")
    good = prepared(sink, range(3))
    with pytest.raises(LogDamagedError, match="cannot be read"):
        sink.commit(msgspec.structs.replace(good, handle={**good.handle, "files": [name]}))


def test_an_altered_committable_of_a_database_is_refused_and_touches_nothing(tmp_path: Path) -> None:
    database = Database(tmp_path / "shop.db")
    sink = database.sink()
    good, other = write(sink, context(), words(1)), write(sink, context(2), words(10))

    def state() -> Any:
        tables = [name for (name,) in database.run("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: database.run(f"SELECT * FROM {name}") for name in tables}

    check_altered(sink, good, state, {"rows", "proof", "handle"})
    with pytest.raises(LogDamagedError, match="is not the name of this transaction"):
        sink.commit(msgspec.structs.replace(good, transaction=other.transaction))
    for rows in (2**63, 10**40, -1):
        found = sink.commit(msgspec.structs.replace(good, rows=rows)).status
        assert found in {CommitStatus.COMMITTED, CommitStatus.ALREADY_COMMITTED}
    assert database.rows() == expected(1)


MOVES = [
    "",
    "[" * 100_000,
    "[]",
    "{}",
    '{"target": "words"}',
    '{"target": [null, "words"], "key": "id"}',
    '{"target": [null, "onceward_ledger"], "key": []}',
    '{"target": ["main\\"; DROP TABLE words; --", "words"], "key": []}',
    '{"target": [null, "words"], "key": ["id\\") DO NOTHING; --"]}',
    '{"target": [null, ""], "key": []}',
    '{"target": [null, "nul\\u0000"], "key": []}',
]


@pytest.mark.parametrize("movement", MOVES)
def test_an_altered_row_of_staged_moves_nothing(tmp_path: Path, movement: str) -> None:
    database = Database(tmp_path / "shop.db")
    sink = database.sink()
    good = write(sink, context(), words(1))
    text = movement.replace("'", "''")
    database.run(f"UPDATE onceward_staged SET movement = '{text}'")
    for committable in (good, msgspec.structs.replace(good, handle={})):  # an earlier version knew no digest
        with pytest.raises(SqlError):
            sink.commit(committable)
    assert database.rows() == []
    assert database.run("SELECT count(*) FROM onceward_ledger") == [(0,)]


STAGED = {
    "another table": "movement = replace(movement, '\"words\"', '\"others\"')",
    "no digest": "movement = replace(movement, 'sha256', 'sha512')",
    "fewer rows": "row_count = row_count - 1",
    "a staging table": "stage = 'words'",
}


@pytest.mark.parametrize("change", STAGED)
def test_a_row_of_staged_that_is_not_the_decided_one_is_refused(tmp_path: Path, change: str) -> None:
    database = Database(tmp_path / "shop.db")
    database.run("CREATE TABLE others (id integer, word text)")
    sink = database.sink()
    good = write(sink, context(), words(1))
    kept = database.run("SELECT row_count, stage, movement FROM onceward_staged")
    assert [c.identity() for c in sink.lingering(context().scope)] == [good.identity()]
    database.run(f"UPDATE onceward_staged SET {STAGED[change]}")
    assert database.run("SELECT row_count, stage, movement FROM onceward_staged") != kept
    with pytest.raises(SqlError, match="is not the one that was decided"):
        sink.commit(good)
    assert database.rows() == database.run("SELECT * FROM others") == []
    assert list(sink.inspect_many([good])) == [Observation.PREPARED]


def test_a_piece_of_staged_rows_that_is_not_the_decided_one_is_refused(tmp_path: Path) -> None:
    database = Database(tmp_path / "shop.db")
    sink = database.sink()
    good = write(sink, context(), words(1))
    [(data,)] = database.run("SELECT data FROM onceward_staged_rows")
    for at in range(0, len(data), 7):
        altered = data[:at] + b"\xff\xff\xff\x7f" + data[at + 4 :]
        database.run(f"UPDATE onceward_staged_rows SET data = X'{altered.hex()}'")
        with pytest.raises(OncewardError):
            sink.commit(good)
        assert database.rows() == []
    other = data.replace(b"w1", b"w7")
    assert other != data
    database.run(f"UPDATE onceward_staged_rows SET data = X'{other.hex()}'")
    with pytest.raises(SqlError, match="are not those that were decided"):
        sink.commit(good)
    database.run(f"UPDATE onceward_staged_rows SET data = X'{data.hex()}'")
    assert sink.commit(good).status is CommitStatus.COMMITTED
    assert database.rows() == expected(1)


def test_pieces_that_are_exchanged_removed_or_added_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onceward.connectors.database.batched_inserts.CHUNK_BYTES", 60)
    database = Database(tmp_path / "shop.db")
    sink = database.sink()
    good = write(sink, context(), *(words(3 * n) for n in range(6)))
    pieces = database.run("SELECT count(*) FROM onceward_staged_rows")[0][0]
    assert pieces > 3
    last = f"number = {pieces - 1}"
    for change, back in (
        (
            "UPDATE onceward_staged_rows SET number = -1 - number WHERE number < 2",
            "UPDATE onceward_staged_rows SET number = -1 - number WHERE number < 0",
        ),
        (
            f"UPDATE onceward_staged_rows SET name = 'x' WHERE {last}",
            "UPDATE onceward_staged_rows SET name = (SELECT name FROM onceward_staged) WHERE name = 'x'",
        ),
        (
            f"INSERT INTO onceward_staged_rows SELECT name, 99, data FROM onceward_staged_rows WHERE {last}",
            "DELETE FROM onceward_staged_rows WHERE number = 99",
        ),
    ):
        database.run(change)
        with pytest.raises(SqlError, match=r"somebody changed them|UNIQUE"):
            sink.commit(good)
        assert database.rows() == []
        database.run(back)
    assert sink.commit(good).status is CommitStatus.COMMITTED
    assert database.rows() == expected(0, 18)


def test_a_decision_that_names_another_pipelines_transaction_is_refused() -> None:
    base = {"pipeline": "p", "log": LOG, "writer_id": "w", "start": 0}
    mine = Committable(kind="k", pipeline="p", sink="s", log=LOG, generation=0, epoch=0, transaction="t")
    assert fold([Start(position=0, **base), Decide(position=1, epoch=0, committables=(mine,), **base)]).undone
    for altered in ({"pipeline": "q"}, {"log": "ffffffff"}):
        other = msgspec.structs.replace(mine, **altered)
        with pytest.raises(LogDamagedError, match="a transaction of another decision log"):
            fold([Start(position=0, **base), Decide(position=1, epoch=0, committables=(mine, other), **base)])


@pytest.mark.parametrize("text", [b"\xff\xfe\x00", b"", b"../../x", b"9" * 5000])
def test_altered_claims_and_identities_of_folders_are_other_ones(tmp_path: Path, text: bytes) -> None:
    sink = Mailbox(tmp_path, name="s")
    good, scope = prepared(sink, range(3)), Scope("p", "s", LOG)
    sink.ledger().claim(scope)
    [claim] = tmp_path.glob(".*.claim")
    claim.write_bytes(text)
    with pytest.raises(EpochConflictError, match="decision log"):
        sink.ledger().check_claim(scope, NOTHING)
    (tmp_path / ".identity").write_bytes(text)
    next(tmp_path.glob("*.segment")).unlink()
    assert list(sink.inspect_many([good])) == [Observation.NO_ANSWER]
    assert sink.commit(good).status is CommitStatus.RETRY_LATER


@pytest.mark.parametrize("text", [b"9" * 5000, b"-1", b"1e3", b"\xff", b"", b" 1"])
def test_an_altered_mark_is_never_a_number_of_rows(tmp_path: Path, text: bytes) -> None:
    sink = Mailbox(tmp_path, name="s", remembers=True)
    good = prepared(sink, range(3))
    mark = text + b" %08x\n" % zlib.crc32(text)
    next(tmp_path.glob("*.segment")).with_suffix(".marks").write_bytes(mark)
    assert sink.commit(good).status is CommitStatus.COMMITTED
    assert sink.rows == [0, 1, 2]


def test_files_with_hostile_names_in_a_sinks_folder_are_ignored(tmp_path: Path) -> None:
    for name in ("onceward:1:p:s:0123abcd:1:1:0:0:0123abcd.segment", "\u202e.segment", "%s.segment", "'; --.segment"):
        (tmp_path / name).touch()
    (tmp_path / os.fsdecode(b"\xff\xfe.segment")).touch()
    sink = Mailbox(tmp_path, name="s")
    assert list(sink.lingering(Scope("p", "s", LOG))) == []
    assert list(sink.lingering_elsewhere("p", LOG)) == []


@pytest.mark.parametrize("text", ["x" * 65, ".", "a b", *(text for text in TEXTS if text != "pg_catalog.pg_class")])
def test_hostile_names_of_pipelines_and_sinks_are_refused_before_anything_is_made(tmp_path: Path, text: str) -> None:
    makers = (
        lambda: Pipeline(text, store=str(tmp_path / "log")),
        lambda: open_store(f"sqlite:///{tmp_path}/log.db", pipeline=text),
        lambda: FileSink(text, tmp_path / "out"),
    )
    for make in makers:
        with pytest.raises(ConfigurationError):
            make()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", [text for text in TEXTS if "\0" not in text and 0 < len(text) < 100])
def test_hostile_names_of_tables_and_columns_are_names(tmp_path: Path, text: str) -> None:
    database = Database(tmp_path / "shop.db")
    table = '"' + text.replace('"', '""') + '"'
    rows = pa.record_batch({"id": [1, 2], text: ["a", "b"], f"{text}s": ["'; --", "%s :x"]})
    for epoch, key in enumerate([None, [text]], 1):
        where = table[:-1] + f'{epoch}"'
        sink = database.sink(table=where, key=key, create_table=True)
        sink.validate(rows.schema)
        assert sink.commit(write(sink, context(epoch), rows)).status is CommitStatus.COMMITTED
        found = {tuple(row) for row in database.run(f"SELECT * FROM {where}")}
        assert found == {(1, "a", "'; --"), (2, "b", "%s :x")}
    assert database.rows() == []
