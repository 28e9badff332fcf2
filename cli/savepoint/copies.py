"""A savepoint of a Spark query: its checkpoint and its decision log, copied when nobody can write to them any more.

    <savepoint>/begun            written first: whose savepoint it is going to be
    <savepoint>/checkpoint/…     the files of Spark's checkpoint
    <savepoint>/log/…            the entries of the decision log
    <savepoint>/manifest         written last: size and SHA-256 of all of these, and the position of the sinks
    <savepoint>/claimed          where the first restore of a retired one was begun
    <savepoint>/restored         where the last restore was finished

1. What has no manifest is no savepoint: a copy that was interrupted is never restored.
2. The copy is consistent because it is made after a START: no epoch can be decided between the log's last entry and the
   end of the copying. That START is still the newest when the manifest is written, and no file of the checkpoint has
   changed since before it, or there is no manifest.
3. The savepoint is of a whole epoch: it is the newest decided one, completed, and Spark has logged it.
4. A pipeline that moves has one log at any time: MOVED ends the old one before the copy can be started.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from onceward.core.engine.reference import Decided
from onceward.core.engine.state.handles import FileRef, decode_metadata, is_metadata
from onceward.core.engine.state.storage import METADATA, CheckpointStorage, inside
from onceward.core.errors import ConfigurationError, EpochConflictError, FencedError, StateDamagedError, StateError
from onceward.core.log import LogWriter, Moved
from onceward.core.log.entries import key_of, position_of, position_of_record
from onceward.core.log.store import IN_CHECKPOINT
from onceward.core.names import Progress

if TYPE_CHECKING:
    from collections.abc import Iterable

    from onceward.core.checkpoint import CommitPolicy
    from onceward.core.engine.state.handles import Metadata
    from onceward.core.log import Decide, LogStore, LogView

    from ..operate.logs import Log

BEGUN: Final = "begun"
MANIFEST: Final = "manifest"
CLAIMED: Final = "claimed"
RESTORED: Final = "restored"
FILES: Final = "checkpoint"
ENTRIES: Final = "log"
IDENTITY: Final = "metadata"
"""Spark's file with the query's id. Without it a checkpoint is a new query's, which no log of an old one admits."""
QUIET_SECONDS: Final = 2.0
"""For which a checkpoint must not change before its query is taken for stopped."""
_MAGIC: Final = b"onceward-savepoint/1 "
_STOP: Final = (
    "Stop it (query.stop(), or SIGTERM to its driver, and wait until the process has ended), then repeat this"
)


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a savepoint of a Spark query holds. JSON-serialisable."""

    pipeline: str
    query: str
    """Spark's id of the query."""
    log: str
    """Identity of the decision log."""
    generation: int
    """Position of the START under which the newest epoch was decided."""
    epoch: int
    """The newest epoch that the sinks have."""
    sinks: tuple[str, ...]
    input: Any = None
    """Offsets where that epoch's input ended."""
    made: str
    checkpoint: str
    """Location of the checkpoint that it is a copy of."""
    store: str | None = None
    """Where its decision log was; None: in the checkpoint."""
    retired: bool = False
    """Whether that log has ended with this savepoint."""
    files: tuple[FileRef, ...]
    entries: tuple[FileRef, ...]

    @property
    def position(self) -> Progress:
        """How far the sinks had come."""
        return Progress(self.generation, self.epoch)

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(ref.size for ref in (*self.files, *self.entries))

    @property
    def place(self) -> str:
        """Where its decision log was."""
        return self.checkpoint if self.store is None else self.store


def _sealed(manifest: Manifest) -> bytes:
    body = msgspec.json.encode(manifest)
    return _MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def _unsealed(data: bytes, where: str) -> Manifest:
    header, _, body = data.partition(b"\n")
    if header != _MAGIC + hashlib.sha256(body).hexdigest().encode():
        raise StateDamagedError(f"the savepoint's manifest {where} is damaged: its checksum does not match")
    return msgspec.json.decode(body, type=Manifest)


@dataclass(frozen=True)
class Savepoint:
    """A complete savepoint of a Spark query."""

    storage: CheckpointStorage
    manifest: Manifest

    @classmethod
    def load(cls, place: str) -> Savepoint:
        """Read a savepoint's manifest.

        Raises:
            ConfigurationError: There is no savepoint of a Spark query, or only a part of one.
            StateDamagedError: The manifest is not what was written.
        """
        storage = CheckpointStorage(place)
        data = storage.read_if_there(MANIFEST)
        if data:
            return cls(storage, _unsealed(data, storage.at(MANIFEST)))
        if storage.read_if_there(BEGUN):
            raise ConfigurationError(
                f"{storage.root} holds only a part of a savepoint: its copying was interrupted. Make it again, or "
                "delete it with `onceward savepoint delete`"
            )
        raise ConfigurationError(f"{storage.root} is not a savepoint of a Spark query")

    @property
    def restored_to(self) -> str:
        """Where it was restored to, the last time; empty if it never was."""
        return self.storage.read_if_there(RESTORED).decode()

    @property
    def claimed_by(self) -> str:
        """Where a restore of it was begun that needed no other log; empty if none was."""
        return self.storage.read_if_there(CLAIMED).decode()

    def claim(self, place: str) -> None:
        """Let no other place go on from the log in it.

        Raises:
            EpochConflictError: Another one was first.
        """
        if not self.claimed_by:
            self.storage.write(CLAIMED, [place.encode()])
        if self.claimed_by != place:
            raise EpochConflictError(f"{self.storage.root} is being restored to {self.claimed_by}: finish it there")

    def mark_restored(self, place: str) -> None:
        """Remember where the pipeline is now."""
        if self.restored_to != place:
            self.storage.delete([RESTORED])
            self.storage.write(RESTORED, [place.encode()])

    def verify(self) -> None:
        """Read every file.

        Raises:
            StateDamagedError: One is missing, or not what was written.
        """
        for ref in (*self.manifest.files, *self.manifest.entries):
            for _ in self.storage.proven(ref):
                pass


# Making one


def create(
    checkpoint: str, place: str, log: Log, policy: CommitPolicy, *, store: str | None, retire: bool, quiet: float
) -> Manifest:
    """Copy the checkpoint and decision log of a query that is stopped.

    A driver that is still alive is fenced by it, if it was too idle to be noticed.

    Args:
        checkpoint: Of the query.
        place: Folder of the savepoint: new, empty, or with a part of this savepoint.
        log: Its decision log.
        policy: Clocks and pauses.
        store: Where the log is, for messages; None: in the checkpoint.
        retire: End the log: the pipeline goes on only where the savepoint is restored.
        quiet: Seconds for which nothing may change before the query is taken for stopped.

    Raises:
        ConfigurationError: The log is not this checkpoint's, or the savepoint's folder is in use. Nothing was changed.
        EpochConflictError: The query runs, or did not end with a whole epoch.
        FencedError: A driver has started meanwhile. There is no savepoint.
    """
    source, into = CheckpointStorage(checkpoint), CheckpointStorage(place)
    check_can_create(source, into, log, quiet=quiet)
    _begin(into, log.pipeline)
    writer = LogWriter(log.store, log.pipeline, policy.writer_clock())
    ended = bool(log.view.moved)  # by an earlier try
    view = log.view if ended else writer.start()
    decision, before = newest_decision(source, log, view), _stamps(source)
    files = [into.write(f"{FILES}/{path}", source.chunks(path, "the checkpoint's file")) for path in sorted(before)]
    entries = [into.write(f"{ENTRIES}/{key}", [data]) for key, data in entries_of(log.store, view)]
    if _stamps(source) != before:
        raise EpochConflictError(
            f"the checkpoint {source.root} changed while it was copied, so its query runs. {_STOP}",
            pipeline=log.pipeline,
        )
    if retire and not ended:
        writer.move(into.root)
    elif not ended and not writer.still_newest():
        raise FencedError(f"the query was started while {source.root} was copied. {_STOP}", pipeline=log.pipeline)
    manifest = Manifest(
        pipeline=log.pipeline,
        query=decision.input.query,
        log=decision.log,
        generation=decision.start,
        epoch=decision.epoch,
        sinks=decision.sinks,
        input=decision.input.end,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        checkpoint=source.root,
        store=store,
        retired=retire,
        files=tuple(files),
        entries=tuple(entries),
    )
    into.write(MANIFEST, [_sealed(manifest)])
    return manifest


def check_can_create(source: CheckpointStorage, into: CheckpointStorage, log: Log, *, quiet: float) -> Decide:
    """The epoch that a savepoint made now would be of; changes nothing.

    Raises:
        ConfigurationError: The log is not this checkpoint's, or the savepoint's folder is in use.
        EpochConflictError: The query runs, or did not end with a whole epoch.
    """
    _check_free(into, log.pipeline)
    if f"{into.root}/".startswith(f"{source.root}/"):
        raise ConfigurationError(f"the savepoint {into.root} cannot be inside its own checkpoint: give another folder")
    view = log.view
    if view.moved not in {"", into.root}:
        raise EpochConflictError(
            f"the pipeline has moved from {source.root} to {view.moved}: make the savepoint there",
            pipeline=log.pipeline,
        )
    decision, before = newest_decision(source, log, view), _stamps(source)
    time.sleep(quiet)
    if log.view.tail != view.tail or _stamps(source) != before:
        raise EpochConflictError(
            f"the query of {source.root} runs: it has just written. {_STOP}", pipeline=log.pipeline
        )
    return decision


def newest_decision(source: CheckpointStorage, log: Log, view: LogView) -> Decide:
    """The newest decision, which must be completed and be the newest batch that Spark has logged."""
    if view.undone is not None:
        raise EpochConflictError(
            f"epoch {view.undone.epoch} is decided and not committed everywhere: the query runs, or has died. Start it "
            "once more and stop it again, or end the epoch with `onceward txn commit`; then repeat this",
            pipeline=log.pipeline,
            epoch=view.undone.epoch,
        )
    decision = view.newest
    if decision is None:
        raise ConfigurationError(
            f"the decision log in {log.store.describe()} has no decided epoch: nothing to save yet"
        )
    if Decided.of(decision) is not None:
        raise ConfigurationError(
            f"pipeline {log.pipeline} runs in the embedded engine, not on Spark: leave out --checkpoint"
        )
    about = decision.input
    try:
        query = str(json.loads(_text(source, IDENTITY))["id"])
        digest = hashlib.sha256(_text(source, f"offsets/{decision.epoch}")).hexdigest()
    except (StateDamagedError, ValueError, LookupError, TypeError) as error:
        raise ConfigurationError(
            f"{source.root} is not the checkpoint of epoch {decision.epoch}, the newest in the decision log in "
            f"{log.store.describe()}: {error}"
        ) from error
    if (query, digest) != (about.query, about.digest):
        raise ConfigurationError(
            f"the decision log in {log.store.describe()} does not belong to the checkpoint {source.root}: its newest "
            f"epoch, {decision.epoch}, was decided from other input, or by another query"
        )
    logged = max((int(name) for name in source.names("commits") if name.isdigit()), default=-1)
    if logged != decision.epoch:
        raise EpochConflictError(
            f"Spark has logged batch {logged}, and epoch {decision.epoch} is completed: the query runs, or its driver "
            "died in between. Start it once more and stop it again; then repeat this",
            pipeline=log.pipeline,
            epoch=decision.epoch,
        )
    return decision


def entries_of(store: LogStore, view: LogView) -> Iterable[tuple[str, bytes]]:
    """What a copy of the log needs, by keys, oldest first: its valid entries less MOVED, and all audit records."""
    wanted = {key_of(position) for position, entry in view.positions if not isinstance(entry, Moved)}
    wanted |= {key for key in store.list_keys() if position_of(key) is None and position_of_record(key) is not None}
    for key in sorted(wanted):
        data = store.get(key)
        if data is None:
            raise EpochConflictError(f"entry {key} of the decision log went away: the query runs. {_STOP}")
        yield key, data


def _begin(into: CheckpointStorage, pipeline: str) -> None:
    """Delete what an interrupted copying left, and mark the folder as this pipeline's."""
    for folder in (FILES, ENTRIES):
        into.delete_folder(folder)
    if not into.read_if_there(BEGUN):
        into.write(BEGUN, [pipeline.encode()])


def _check_free(into: CheckpointStorage, pipeline: str) -> None:
    if into.read_if_there(MANIFEST):
        raise ConfigurationError(f"{into.root} already holds a savepoint: give another folder, or delete it first")
    begun = into.read_if_there(BEGUN).decode()
    if begun != pipeline and not into.is_empty:
        whose = f"a part of a savepoint of pipeline {begun!r}" if begun else "other files"
        raise ConfigurationError(f"{into.root} holds {whose}: give a new or an empty folder")


def _stamps(source: CheckpointStorage) -> dict[str, Any]:
    """The checkpoint's files, and by what a change shows; without the decision log in it."""
    return {path: stamp for path, stamp in source.walk().items() if not path.startswith(f"{IN_CHECKPOINT}/")}


def _text(source: CheckpointStorage, path: str) -> bytes:
    return b"".join(source.chunks(path, "the checkpoint's file"))


# Those that there are


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A savepoint, as `--json` shows it."""

    place: str
    kind: str
    """"spark", "engine", "incomplete" or "damaged"."""
    pipeline: str
    epoch: int | None = None
    made: str = ""
    size: int | None = None
    """Bytes."""
    retired: bool = False
    restored_to: str = ""
    problem: str = ""


def look(place: str) -> Listed | None:
    """What a folder holds; None if that is no savepoint."""
    storage = CheckpointStorage(place)
    begun = storage.read_if_there(BEGUN).decode()
    try:
        if not begun:
            made = engine_savepoint(storage)
            return _of_engine(storage.root, made) if made is not None else None
        if not storage.read_if_there(MANIFEST):
            return Listed(place=storage.root, kind="incomplete", pipeline=begun)
        saved = Savepoint.load(place)
    except StateDamagedError as error:
        return Listed(place=storage.root, kind="damaged", pipeline=begun, problem=str(error))
    m = saved.manifest
    return Listed(
        place=storage.root,
        kind="spark",
        pipeline=m.pipeline,
        epoch=m.epoch,
        made=m.made,
        size=m.size,
        retired=m.retired,
        restored_to=saved.restored_to,
    )


def _of_engine(place: str, made: Metadata) -> Listed:
    size = sum(ref.size for refs in made.files().values() for ref in refs)
    return Listed(place=place, kind="engine", pipeline=made.pipeline, epoch=made.checkpoint, size=size)


def engine_savepoint(storage: CheckpointStorage) -> Metadata | None:
    """The metadata of a savepoint of the embedded engine; None if there is none.

    Raises:
        StateDamagedError: They are not what was written.
    """
    data = storage.read_if_there(METADATA)
    if not is_metadata(data):  # a Spark checkpoint has a file of that name too
        return None
    metadata = decode_metadata(data, storage.at(METADATA))
    return metadata if metadata.savepoint else None


def listed(place: str) -> list[Listed]:
    """The savepoint in a folder, or those in the folders right below it.

    Raises:
        ConfigurationError: There is no such folder.
    """
    storage = CheckpointStorage(place)
    names = storage.names()
    if not names:
        raise ConfigurationError(f"{storage.root}: there is no such folder, or it is empty")
    own = look(storage.root)
    found = [own] if own is not None else [look(inside(storage.root, name)) for name in sorted(names)]
    return [one for one in found if one is not None]


def found_at(place: str) -> Listed:
    """What a folder holds.

    Raises:
        ConfigurationError: That is no savepoint.
    """
    found = look(place)
    if found is None:
        raise ConfigurationError(f"{CheckpointStorage(place).root} is not a savepoint")
    return found


def delete(place: str) -> None:
    """Delete a savepoint, or a part of one: first the file without which nobody takes the rest for one.

    Raises:
        ConfigurationError: The folder is not a savepoint.
        StateError: Something could not be deleted.
    """
    pipeline, storage = found_at(place).pipeline, CheckpointStorage(place)
    try:
        if not storage.read_if_there(BEGUN):
            storage.write(BEGUN, [pipeline.encode()])  # so that the rest of it is known for what it is
        storage.delete([MANIFEST, METADATA])
        storage.delete(path for path in storage.walk() if path != BEGUN)
        storage.delete_folder("")
    except OSError as error:
        raise StateError(f"{storage.root} is deleted in part only: {error}. Repeat this") from error
