"""The lines of notes beside a decision log: what is written, and what is read of lines that others wrote."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from onceward.core.contract.events import CheckpointEnded, EpochCompleted, SourceAnswers, SourceWaits, Started, Took
from onceward.core.contract.transaction import Committable
from onceward.core.errors import FencedError
from onceward.core.log import DirectoryStore, EpochInput
from onceward.core.log.note_kinds import KINDS, CheckpointRecord, FailureNote, SourceNote, TaskRecord
from onceward.core.log.notes import (
    FILE,
    leave,
    note_end,
    note_failure,
    note_life,
    note_of,
    note_task,
    notes,
    tell_and_note,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TOOK = Took(0.5, 0.1, 0.2)
KAFKA = {"system": "kafka", "address": "broker:9092"}


def committable(transaction: str, sink: str = "files", rows: int = 3) -> Committable:
    return Committable(
        kind="files", pipeline="p", sink=sink, log="0123abcd", generation=0, epoch=7, transaction=transaction, rows=rows
    )


def started(store: DirectoryStore) -> None:
    event = Started(
        "p", 6, None, "0123abcd", "folder", [committable("a")], [committable("b")], 0.25, position=4,
        timeouts=lambda: {"files": 900.0}, targets=lambda: {"files": KAFKA, "out": {}},
    )  # fmt: skip
    tell_and_note(event, store)


def completed(store: DirectoryStore, took: Took | None = TOOK, *, checkpoint: bool = False) -> None:
    sinks: Any = {"files": None, "table": None}
    made = [] if checkpoint else [committable("a"), committable("b", "table", 2)]
    event = EpochCompleted("p", "0123abcd", 7, EpochInput(), made, sinks, checkpoint=checkpoint, took=took)
    tell_and_note(event, store)


RECORD = CheckpointRecord(
    checkpoint=3,
    kind="checkpoint",
    status="completed",
    duration=0.5,
    subtasks=1,
    tasks=[TaskRecord(task="a[0]", state=9)],
)
TASK = (
    '{"task":"a[0]","acknowledged":0.0,"alignment":0.0,"buffered":0,"sync":0.0,"asynchronous":0.0,"uploaded":0,'
    '"state":9,"rows_in":0,"rows_out":0,"busy":0.0,"blocked":0.0,"timers":null,"lag":null}'
)
WRITTEN: dict[str, tuple[Callable[[DirectoryStore], None], str]] = {
    "start": (
        started,
        (
            '{"what":"start","at":"AT","fields":{"position":4,"finished":["a"],"aborted":["b"],"milliseconds":250,'
            '"timeouts":{"files":900.0},"targets":{"files":{"system":"kafka","address":"broker:9092"},"out":{}}}}'
        ),
    ),
    "epoch": (
        completed,
        (
            '{"what":"epoch","at":"AT","fields":{"epoch":7,"rows":5,"sinks":{"files":3,"table":2},"transactions":2,'
            '"milliseconds":500,"commit_milliseconds":200}}'
        ),
    ),
    "epoch of another run": (
        lambda store: completed(store, None),
        (
            '{"what":"epoch","at":"AT","fields":{"epoch":7,"rows":5,"sinks":{"files":3,"table":2},"transactions":2,'
            '"milliseconds":null,"commit_milliseconds":null}}'
        ),
    ),
    "empty checkpoint": (lambda store: completed(store, checkpoint=True), ""),
    "checkpoint": (
        lambda store: tell_and_note(CheckpointEnded("p", RECORD, bad=False), store),
        (
            '{"what":"checkpoint","at":"AT","fields":{"checkpoint":3,"kind":"checkpoint","status":"completed","reason":"",'
            f'"triggered":0.0,"duration":0.5,"subtasks":1,"tasks":[{TASK}]}}}}'
        ),
    ),
    "failure": (
        lambda store: note_failure(store, 7, "no\n table of postgresql://me:secret@db/shop", ValueError()),
        '{"what":"failure","at":"AT","fields":{"epoch":7,"error":"no table of postgresql://me:***@db/shop"}}',
    ),
    "failure that names a file whose name is no text": (
        lambda store: note_failure(store, 7, "no file /data/\udcff"),
        '{"what":"failure","at":"AT","fields":{"epoch":7,"error":"no file /data/\\\\udcff"}}',
    ),
    "failure of a start": (
        lambda store: note_failure(store, None, "x" * 900),
        f'{{"what":"failure","at":"AT","fields":{{"epoch":null,"error":"{"x" * 500}"}}}}',
    ),
    "failure of a fenced run": (lambda store: note_failure(store, 7, "x", FencedError("newer")), ""),
    "task": (
        lambda store: note_task(store, 7, "full", OSError("full")),
        '{"what":"task","at":"AT","fields":{"epoch":7,"error":"full"}}',
    ),
    "task of a fenced run": (lambda store: note_task(store, 7, "x", FencedError("newer")), ""),
    "source": (
        lambda store: tell_and_note(SourceWaits("p", "in (topic x)", 20.04, "no broker", KAFKA), store),
        (
            '{"what":"source","at":"AT","fields":{"source":"in (topic x)","seconds":20.0,"why":"no broker",'
            '"system":{"system":"kafka","address":"broker:9092"}}}'
        ),
    ),
    "source that answers": (
        lambda store: tell_and_note(SourceAnswers("p", "in (topic x)", 20.04), store),
        '{"what":"source","at":"AT","fields":{"source":"in (topic x)","seconds":20.0,"why":"","system":{}}}',
    ),
    "life": (
        lambda store: note_life(store.path, 137, 2.5004, again=None, stopped=True, writers=["a"]),
        '{"what":"life","at":"AT","fields":{"code":137,"seconds":2.5,"again":null,"stopped":true,"writers":["a"]}}',
    ),
    "end": (note_end, '{"what":"end","at":"AT","fields":{}}'),
}
"""What is noted, and the line of it, as releases have written it."""


@pytest.mark.parametrize("name", WRITTEN)
def test_a_note_is_written_as_it_always_was(tmp_path: Path, name: str) -> None:
    store = DirectoryStore(tmp_path / "log")
    noted, line = WRITTEN[name]
    noted(store)
    file = store.path / FILE
    text = file.read_text() if file.exists() else ""
    assert re.sub(r'"at":"[^"]{29}"', '"at":"AT"', text) == (f"{line}\n" if line else "")


@pytest.mark.parametrize("name", WRITTEN)
def test_a_note_is_read_with_the_fields_that_were_written(tmp_path: Path, name: str) -> None:
    _, line = WRITTEN[name]
    (tmp_path / FILE).write_text(line.replace('"AT"', '"2026-01-01T12:00:00.000+00:00"') + "\n")
    read = notes(tmp_path, 9)
    assert len(read) == bool(line)
    for one in read:
        leave(DirectoryStore(tmp_path / "again"), one)
        again = json.loads((tmp_path / "again" / FILE).read_text())
        assert {**again, "at": "AT"} == json.loads(line)
        assert one.at == "2026-01-01T12:00:00.000+00:00"


ODD: list[Any] = [None, "x", -1, 0.5, 10**30, 1e300, True, [], ["x"], {}, {"x": 7}, {"files": "x"}]


@pytest.mark.parametrize("kind", KINDS)
def test_a_field_that_somebody_else_has_changed_costs_no_other_field_and_no_other_note(
    tmp_path: Path, kind: str
) -> None:
    line = json.loads(next(text for _, text in WRITTEN.values() if f'"what":"{kind}"' in text))
    sound = note_of(**line)
    assert sound is not None
    needed = {field.name for field in msgspec.structs.fields(KINDS[kind]) if field.required}
    for name in line["fields"]:
        for odd in ODD:
            changed = {**line, "fields": {**line["fields"], name: odd}}
            (tmp_path / FILE).write_text("\n".join(map(json.dumps, (line, changed, line))))
            read = notes(tmp_path, 9)
            assert read[0] == read[-1] == sound
            assert len(read) == 3 or name in needed
            for one in read:
                others = {other: getattr(one, other) for other in line["fields"] if other != name}
                assert others == {other: getattr(sound, other) for other in others}


def test_lines_of_kinds_that_are_not_known_are_no_notes_and_hide_none(tmp_path: Path) -> None:
    """A later version may note more: what it adds is no end of a failure, nor of a run."""
    failed = '{"what":"failure","at":"2026-01-01T12:00:00.000+00:00","fields":{"epoch":7,"error":"full"}}'
    later = '{"what":"weather","at":"2026-01-01T12:00:01.000+00:00","fields":{"sun":1}}'
    more = failed.replace('"epoch":7', '"epoch":7,"sun":{"bright":1}')
    lines = [failed, later, "{", "[]", '{"what":7}', '{"what":"end"}', more]
    (tmp_path / FILE).write_text("\n".join(lines))
    assert notes(tmp_path, 9) == [FailureNote(at="2026-01-01T12:00:00.000+00:00", epoch=7, error="full")] * 2


@pytest.mark.parametrize("odd", [object(), "\udcff", {object(): 1}, [], 2**70], ids=range(5))
def test_a_note_that_json_cannot_hold_fails_nothing(tmp_path: Path, odd: Any) -> None:
    leave(DirectoryStore(tmp_path / "log"), SourceNote(source="in", system=odd))
    store = DirectoryStore(tmp_path / "log")
    tell_and_note(Started("p", 6, None, "", "", [], [], 0.0, targets=lambda: {"a": odd}), store)
    leave(store, SourceNote(source="\udcff", why="\udcff"))
