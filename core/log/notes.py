"""Notes beside a decision log: what its writers did, how long it took, and how many rows it was.

For people, who see them in `onceward ui`: the log itself is pruned at each completion. Nothing depends on a note. It is
not synced, one that cannot be written is left out, and the oldest go when the file has grown. Only a log in a folder
has them: elsewhere each would be a request.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..contract.events import CheckpointEnded, EpochCompleted, SourceAnswers, SourceWaits, Started, tell
from ..errors import FencedError
from ..kit import typed
from ..kit.folders import open_regular
from ..kit.secrets import without_logins
from .note_kinds import KINDS, EndNote, EpochNote, FailureNote, LifeNote, SourceNote, StartNote, TaskNote
from .store import DirectoryStore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ..contract.events import Event
    from .note_kinds import ErrorNote, Note
    from .store import LogStore

FILE: Final = ".history"
"""Name of the notes' file in the log's folder; a store does not list names with a dot."""
OLDER: Final = ".history.1"
MOST_BYTES: Final = 1 << 18
"""Size at which the file becomes the older one, in place of the one before."""
_TAIL: Final = 2 * MOST_BYTES
"""Number of bytes of each file that are read: all of it, unless others have made it larger."""
_NAMES: Final = 50
"""Number of transactions that a note names at most."""
_ERROR: Final = 500
"""Number of characters of an error that a note holds at most."""


def leave(store: LogStore | None, event: Note) -> None:
    """Write an event beside a log, with the time of now. Fails nothing.

    Args:
        store: Store of the decision log; None if this process sees none.
        event: Event as one of the kinds of notes; its own time is not written.
    """
    if store is not None:
        note(store, *_as_line(event))


def note(store: LogStore, what: str, fields: Any) -> None:
    """Write a line of any kind beside a log, with fields that are JSON values. Fails nothing."""
    if isinstance(store, DirectoryStore):
        _append(store.path, what, fields)


def _as_line(event: Note) -> tuple[str, dict[str, Any]]:
    """Return the kind of a note and its fields."""
    fields = msgspec.structs.asdict(event)
    del fields["at"]
    return event.what, {name: value for name, value in fields.items() if value is not msgspec.UNSET}


def _append(folder: Path, what: str, fields: Any) -> None:
    with suppress(OSError, TypeError, ValueError):  # what cannot be written, or has no form in JSON
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = msgspec.json.encode({"what": what, "at": at, "fields": fields}) + b"\n"
        # One write at the end of the file: lines of two processes do not mix.
        handle = open_regular(folder / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(handle, line)
            full = os.fstat(handle).st_size > MOST_BYTES
        finally:
            os.close(handle)
        if full:
            (folder / FILE).replace(folder / OLDER)


def tell_and_note(event: Event, store: LogStore | None) -> None:
    """Tell observers of an event, and leave a note of it beside the log. Fails nothing.

    Args:
        event: The event, of a kind that is noted.
        store: Store of the decision log; None if this process sees none.
    """
    tell(event)
    if isinstance(store, DirectoryStore) and (noted := _noted(event)) is not None:
        leave(store, noted)


def _noted(event: Event) -> Note | None:
    """Return what is noted of an event; None if nothing is."""
    match event:
        case Started():
            return StartNote(
                position=event.position,
                finished=[c.transaction for c in event.finished[:_NAMES]],
                aborted=[c.transaction for c in event.aborted[:_NAMES]],
                milliseconds=round(event.seconds * 1000),
                timeouts={**event.timeouts()},
                targets={**event.targets()},
            )
        case EpochCompleted() if not event.is_empty_checkpoint:
            return EpochNote(**event.facts())
        case CheckpointEnded():
            return event.record
        case SourceWaits(_, source, seconds, why, system):
            return SourceNote(source=_line(source), seconds=round(seconds, 1), why=_line(why), system={**system})
        case SourceAnswers(_, source, seconds, system):
            return SourceNote(source=_line(source), seconds=round(seconds, 1), system={**system})
        case _:
            return None


def note_failure(store: LogStore | None, epoch: int | None, why: str, error: BaseException | None = None) -> None:
    """Leave a note of a start, an epoch or an attempt that failed, unless a newer run has fenced it.

    Args:
        store: Store of the decision log; None if this process sees none.
        epoch: Number of the epoch; None if it is not one epoch that failed.
        why: Text of the error. The note keeps it in one line.
        error: The error itself, if it is known here.
    """
    _leave_error(store, FailureNote(epoch=epoch, error=_line(why)), error)


def note_task(store: LogStore | None, epoch: int, why: str, error: BaseException) -> None:
    """Leave a note of a task that failed. It is no failure of the epoch yet: Spark may run the task again."""
    _leave_error(store, TaskNote(epoch=epoch, error=_line(why)), error)


def _leave_error(store: LogStore | None, event: ErrorNote, error: BaseException | None) -> None:
    # From its START on, the newer run alone writes notes: a fenced one is no failure of the pipeline.
    if not isinstance(error, FencedError):
        leave(store, event)


def note_life(
    folder: Path,
    code: int,
    seconds: float,
    *,
    again: float | None,
    stopped: bool = False,
    writers: Sequence[str] = (),
) -> None:
    """Leave a note of a driver's process that has ended, beside the log in this directory.

    Args:
        folder: The log's directory.
        code: Exit code of the process.
        seconds: Seconds for which the process lived.
        again: Seconds until it is started again; None if it is not.
        stopped: True if a signal to `onceward run` has ended the process.
        writers: Identities of the writers that the run's processes have become. The end of a run that another one has
            taken over is no end of the pipeline.
    """
    noted = LifeNote(code=code, seconds=round(seconds, 3), again=again, stopped=stopped, writers=[*writers])
    _append(folder, *_as_line(noted))


def _line(text: str) -> str:
    """Return a text in one line of UTF-8, without passwords: an error may name a file whose name is no text."""
    line = " ".join(text.split()).encode(errors="backslashreplace").decode()
    return without_logins(line)[:_ERROR]


def note_end(store: LogStore) -> None:
    """Leave a note of a run of the embedded engine that ended without an error."""
    leave(store, EndNote())


def notes_beside(store: LogStore | None, most: int) -> list[Note]:
    """Return the newest notes of each kind beside a log, oldest first; none of a log that is in no folder."""
    return notes(store.path, most) if isinstance(store, DirectoryStore) else []


def notes(folder: Path, most: int) -> list[Note]:
    """Return the newest notes of each kind in a log's folder, oldest first; lines that are not notes are kept out.

    Starts are few among the notes of epochs, so each kind has a limit of its own.
    """
    kept: Counter[type[Note]] = Counter()
    entries: list[Note] = []
    for one in reversed(_read(folder / OLDER) + _read(folder / FILE)):
        if kept[type(one)] < most:
            kept[type(one)] += 1
            entries.append(one)
    return entries[::-1]


def _read(path: Path) -> list[Note]:
    entries: list[Note] = []
    with suppress(OSError), os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
        for line in file.read(_TAIL).splitlines():
            with suppress(msgspec.MsgspecError):
                read = typed.decode(line, _Line)
                entries += filter(None, [note_of(read.what, read.at, read.fields)])
    return entries


class _Line(msgspec.Struct, frozen=True):
    what: str
    at: str
    fields: dict[str, Any] = {}


def note_of(what: str, at: str, fields: Mapping[str, Any]) -> Note | None:
    """Return the note that a line holds; None if it is of no kind that is known, or does not say what it is about.

    Others may have written it: a field whose value is not of its type has its default.
    """
    kind = KINDS.get(what)
    with suppress(msgspec.ValidationError):
        return typed.convert_valid({**fields, "what": what, "at": at}, kind) if kind is not None else None
    return None
