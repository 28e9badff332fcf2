"""Find and read a pipeline's decision log, and what it tells of the past."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from onceward.core.errors import ConfigurationError, NoDecisionLogError
from onceward.core.log import Resolved, Void, audit_records, open_store, read
from onceward.core.log.objects import CONDITIONAL_PUT
from onceward.core.log.store import IN_CHECKPOINT, local_folder, scheme_of
from onceward.core.transaction import rows_by_sink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onceward.core.log import Completed, Decide, LogStore, LogView


@dataclass(frozen=True)
class Log:
    """A pipeline's decision log, in its store."""

    pipeline: str
    store: LogStore

    @property
    def view(self) -> LogView:
        """What it says now."""
        return read(self.store)


def open_log(url: str, pipeline: str | None = None, *, writing: bool = False) -> Log:
    """Find a decision log; nothing is made or changed.

    Args:
        url: Of the store, as for open_store, or a Spark checkpoint folder.
        pipeline: Its name; a directory tells it by itself.
        writing: It will be written to: an object store is probed first, as by open_store.

    Raises:
        NoDecisionLogError: There is none.
        ConfigurationError: The URL is not usable, or the log is another pipeline's.
        StoreError: The store did not answer.
        LogDamagedError: An entry is damaged or missing.
    """
    try:
        urlsplit(url)
    except ValueError:
        raise ConfigurationError("--store is not a valid URL: are its special characters percent-encoded?") from None
    if pipeline is None and local_folder(url) is None:
        raise ConfigurationError(f"{scheme_of(url)}:// holds the logs of several pipelines: name one with --pipeline")
    where = ""
    for location in _locations(url):
        store = open_store(location, pipeline=pipeline or "any", existing=True)
        where = where or store.describe()
        owner = read(store).pipeline
        if owner and pipeline not in (None, owner):
            raise ConfigurationError(f"the decision log in {where} belongs to {owner!r}, not to {pipeline!r}")
        if owner:
            return Log(owner, open_store(location, pipeline=owner) if writing else store)
    raise NoDecisionLogError(f"{where} has no decision log{f' of {pipeline}' if pipeline else ''}")


def _locations(url: str) -> Iterator[str]:
    """The URL, and what is in it if that is a checkpoint."""
    yield url
    path, mark, query = url.partition("?")
    folder, shared = local_folder(url) or (None, False)
    if folder is None and urlsplit(url).scheme in CONDITIONAL_PUT:
        yield f"{path.rstrip('/')}/{IN_CHECKPOINT}{mark}{query}"
    elif folder is not None and (folder / IN_CHECKPOINT).is_dir():
        yield f"{folder / IN_CHECKPOINT}?shared={shared}"


class Epoch(msgspec.Struct, frozen=True, kw_only=True):
    """An epoch, as `--json` shows it; times are UTC."""

    pipeline: str
    epoch: int
    decided: str
    completed: str | None = None
    """None while it waits for its commit."""
    rows: dict[str, int]
    """Of each sink."""
    transactions: int
    input: Any
    """Offsets where its input ended."""
    checkpoint: str | None
    """Folder of the embedded engine's checkpoint."""
    retained: tuple[str, ...]
    """Earlier checkpoints beside it, from which a run can be restored too."""


class GivenUp(msgspec.Struct, frozen=True, kw_only=True):
    """The audit record of a transaction that was given up (RESOLVED), or of an epoch that was written again (VOID)."""

    epoch: int
    transaction: str
    """Empty for all of the epoch."""
    action: str
    """What was done: "skip" or "replay"."""
    who: str
    why: str
    at: str


class History(msgspec.Struct, frozen=True, kw_only=True):
    """What a decision log tells of the past: the epochs that it still holds, oldest first, and all ever given up."""

    epochs: list[Epoch]
    given_up: list[GivenUp]


def history(log: Log) -> History:
    """What a decision log tells of the past. It is pruned at each completion, so there are few epochs."""
    epochs = {decision.epoch: _epoch(log.pipeline, decision, done) for decision, done in log.view.decisions}
    return History(epochs=list(epochs.values()), given_up=given_up(log))


def given_up(log: Log) -> list[GivenUp]:
    """All that was ever given up."""
    records = {record.position: record for record in audit_records(log.store)}
    for entry in log.view.entries:
        if isinstance(entry, Resolved | Void):
            records.setdefault(entry.position, entry)
    return [_given_up(record) for record in records.values()]


def _given_up(record: Resolved | Void) -> GivenUp:
    if isinstance(record, Void):
        said: dict[str, str] = {"transaction": "", "action": "replay", "who": "policy on_lost=replay"}
        return GivenUp(epoch=record.epoch, why="; ".join(record.proofs), at=record.at, **said)
    return msgspec.convert(record, GivenUp, from_attributes=True)


def _epoch(pipeline: str, decision: Decide, completed: Completed | None) -> Epoch:
    from onceward.core.engine.reference import Decided, older_checkpoints  # noqa: PLC0415 - the embedded engine

    decided = Decided.of(decision)
    folder = decided.checkpoint.folder if decided is not None else None
    return Epoch(
        pipeline=pipeline,
        epoch=decision.epoch,
        decided=decision.at,
        completed=completed.at if completed is not None else None,
        rows=rows_by_sink(decision.committables, decision.sinks),
        transactions=len(decision.committables),
        input=decision.input.end,
        checkpoint=folder,
        retained=older_checkpoints(folder, decision.epoch) if folder is not None else (),
    )
