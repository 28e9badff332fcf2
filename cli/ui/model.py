"""What the page shows of a pipeline, JSON-serialisable."""

from __future__ import annotations

import msgspec

from onceward.core.engine.events import TaskRecord

from ..operate.logs import GivenUp


class Transaction(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction that a decision names."""

    transaction: str
    sink: str
    subtask: int
    rows: int


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A step in the life of an epoch's transactions."""

    step: str
    state: str
    """`done`, `waiting`, `ahead` or `failed`."""
    at: str | None = None
    detail: str = ""


class Epoch(msgspec.Struct, kw_only=True):
    """An epoch or a checkpoint; times are UTC, and None is what nobody wrote down."""

    epoch: int
    kind: str = "epoch"
    status: str = "in progress"
    reason: str = ""
    began: str | None = None
    prepared: str | None = None
    """When its decision was about to be written."""
    decided: str | None = None
    position: int | None = None
    """Of the decision in the log."""
    completed: str | None = None
    logged: str | None = None
    """When Spark recorded the batch as finished."""
    milliseconds: float | None = None
    commit_milliseconds: float | None = None
    rows: int | None = None
    sinks: dict[str, int | None] = {}
    transactions: int | None = None
    written: list[Transaction] = []
    size: int | None = None
    """Bytes of state."""
    alignment: float | None = None
    """Longest time, in seconds, for which a subtask waited for barriers."""
    subtasks: int | None = None
    acknowledged: int | None = None
    tasks: list[TaskRecord] = []
    steps: list[Step] = []

    @property
    def newest_time(self) -> str:
        return self.completed or self.decided or self.began or ""


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """A start of the pipeline: what it finished and what it swept."""

    at: str
    position: int | None = None
    milliseconds: float = 0
    finished: list[str] = []
    aborted: list[str] = []


class Pipeline(msgspec.Struct, kw_only=True):
    """A pipeline as the page shows it."""

    id: str
    name: str
    store: str
    driver: str = ""
    log: str = ""
    error: str = ""
    newest: str = ""
    """Time of the log's newest entry."""
    writer: int = -1
    """Position of the newest START."""
    waiting: int | None = None
    """Position of the decision that is not completed."""
    epochs: list[Epoch] = []
    starts: list[Start] = []
    given_up: list[GivenUp] = []
