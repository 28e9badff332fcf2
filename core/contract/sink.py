"""The contract of sinks: base classes to subclass, and what coordinator and engine call on them.

A sink is a plain picklable object that holds configuration only; connections are opened where they are used.

Who calls what, in which order (the calls of one epoch of one subtask):

    executor:  begin → write, write, … → pre_commit          (or discard, if anything failed before)
    driver:    the decision becomes durable
    driver:    commit_many → (restart?) commit_many again, until every outcome is known
    driver:    lingering → abort, for what no decision names
    driver:    ledger, for what the target remembers of decision logs (core/contract/ledger.py)

The shape follows Flink's TwoPhaseCommitSinkFunction and its successor, TwoPhaseCommittingSink (FLIP-143, FLIP-372);
the commit by handle, in any process, is what lets it work without long-lived writers.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NoReturn, Self, TypeVar

from ..errors import ExternalError
from ..kit.driver_settings import OF_FORMATS
from ..kit.methods import refuse_hidden_names, refuse_idle_methods
from ..kit.text_options import arguments, check_types
from .ledger import Ledger
from .names import check_sink_name
from .transaction import Observation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from ..kit.text_options import Names
    from .names import Scope
    from .transaction import AbortOutcome, CommitOutcome, Committable, WriteContext

# Covariant, though methods take one: only the sink that began a transaction gets it back, so `[PostgresSink(…),
# KafkaSink(…)]` may be a list of sinks. Without that, mypy calls it a list of objects.
Txn_co = TypeVar("Txn_co", covariant=True)
_CALLED: Final = frozenset(
    {
        *(
            "check_schema",
            "validate",
            "validate_complete_mode",
            "begin",
            "write",
            "pre_commit",
            "discard",
            "commit",
            "commit_many",
            "abort",
            "inspect_many",
        ),
        *("ledger", "warm_up", "open", "flush", "close", "send"),
    }
)
_LISTED: Final = frozenset({"lingering", "lingering_elsewhere"})
"""Methods that may be generators."""


class Guarantee(StrEnum):
    """How often a reader of the target sees each record after any number of failures, from strong to weak.

    At-most-once is the weakest: a lost record cannot be distinguished from one that never existed.
    """

    EXACTLY_ONCE = "exactly-once"
    EFFECTIVELY_ONCE = "effectively-once"
    """The final state is right; in between, after a failure, older values may be visible for a while."""
    AT_LEAST_ONCE = "at-least-once"
    AT_MOST_ONCE = "at-most-once"


class Sink(ABC):
    """Base class of every sink: where an epoch's data goes.

    Several threads may call one object concurrently, for different transactions: the subtasks of the embedded engine,
    and commits. So what belongs to a transaction is kept in the transaction, which one thread at a time uses.

    Args:
        name: Name of the sink, unique in its pipeline; part of every transaction's name, so it must not change
            between runs.
        select: SQL expressions that make this sink's columns out of the pipeline's (default: all columns).
        where: SQL condition; this sink gets only rows for which it is true (default: all rows).
    """

    default_name: ClassVar[str] = ""
    """Name of a sink whose options do not give one; empty if they must."""
    option_aliases: ClassVar[Mapping[str, str]] = {}
    """Options whose names differ from their arguments': `{"path": "folder"}`."""

    def __init__(self, name: str, *, select: Names | None = None, where: str | None = None) -> None:
        check_types(Sink, locals())
        self.name = check_sink_name(name)
        self.select = list(select) if select is not None else None
        self.where = where

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Refuse a method that would do nothing when it is called, or that hides a private one of onceward's."""
        super().__init_subclass__(**arguments)
        refuse_idle_methods(cls, _CALLED, _LISTED)
        refuse_hidden_names(cls)

    if not TYPE_CHECKING:

        def __getattr__(self, attribute: str) -> NoReturn:
            why = f"{type(self).__name__!r} object has no attribute {attribute!r}"
            if attribute in ("name", "select", "where"):
                why += ": its __init__ must call super().__init__(name)"
            raise AttributeError(why, name=attribute, obj=self)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Make a sink from the options of a Spark format: its arguments' names, in any case, underscores or not.

        Raises:
            ConfigurationError: An option is unknown, missing, given in two spellings, or not readable.
        """
        name = {"name": cls.default_name} if cls.default_name else {}
        return cls(**arguments(cls, options, aliases=cls.option_aliases, defaults=name, also=OF_FORMATS))

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee:
        """What this sink promises when driven by onceward."""

    def dataset(self) -> tuple[str, str] | None:
        """Return namespace and name of the target, as OpenLineage names datasets; None if it is not one dataset."""
        return None

    def check_schema(self, schema: pa.Schema) -> None:  # noqa: B027 - most sinks check more
        """Check `schema` against the settings, where the pipeline is described. Asks no target, and changes nothing.

        Raises:
            ConfigurationError: The settings cannot be used with these columns.
            SchemaError: A column does not fit; the message names it.
        """

    def validate(self, schema: pa.Schema) -> None:  # noqa: B027 - most sinks check more
        """Check settings, target and `schema` on the driver, at the start, before anything is written.

        May create what is missing in the target, if a setting requests it.

        Raises:
            ConfigurationError: A setting or the target's setup makes the guarantee impossible.
            SchemaError: A column does not fit; the message names it.
        """

    def validate_complete_mode(self) -> None:  # noqa: B027 - most sinks can write the whole result again
        """Refuse Spark's output mode complete, in which each epoch has the whole result again. Default: it is taken.

        Raises:
            ConfigurationError: The target would show rows of earlier epochs in addition to those of the newest.
        """


class TwoPhaseCommitSink(Sink, Generic[Txn_co]):
    """A sink whose target can prepare a transaction that outlives the process that wrote it."""

    proof: bool = True
    """True if the rows are hashed as they are handed to the sink. Without that, lost rows of an epoch that is visible
    elsewhere cannot be written again, because nothing shows that the rows are the same."""

    @property
    def ordered(self) -> bool:
        """Whether the order of rows decides what the target holds, as in an upsert. Default: it does not."""
        return False

    @property
    def guarantee(self) -> Guarantee:
        """Exactly once, unless a subclass says otherwise."""
        return Guarantee.EXACTLY_ONCE

    @property
    def transaction_timeout(self) -> float | None:
        """Seconds after which the target aborts an open transaction by itself; None if it never does."""
        return None

    def expires_at(self, committable: Committable) -> float | None:  # noqa: ARG002
        """Return when the target ends this transaction by itself, for monitoring; must not contact the target.

        Returns:
            Seconds since 1970 on the target's clock; None if it never does, or if that is not known.
        """
        return None

    @abstractmethod
    def begin(self, context: WriteContext) -> Txn_co:
        """Open a transaction. Called at the first batch of an epoch, and never for an empty epoch."""

    @abstractmethod
    def write(self, transaction: Txn_co, batch: pa.RecordBatch) -> None:  # type: ignore[misc]
        """Write one batch inside the transaction. Nothing may become visible.

        A batch has at most 16 MiB, or one row, whatever the size of the rows that came together.
        """

    @abstractmethod
    def pre_commit(self, transaction: Txn_co) -> Committable:  # type: ignore[misc]
        """Flush and prepare. When this returns, the data must survive this process and the target's restart."""

    def discard(self, transaction: Txn_co) -> None:  # type: ignore[misc]
        """Roll back a transaction that was not pre-committed, because the attempt failed. May be interrupted."""

    @abstractmethod
    def commit(self, committable: Committable) -> CommitOutcome:
        """Commit a prepared transaction: idempotent, from any process.

        Called only for a committable that a durable decision names. A temporary fault is RETRY_LATER; an answer
        that was lost must be resolved by asking the target. Exceptions are bugs or misconfiguration.
        """

    @abstractmethod
    def abort(self, committable: Committable) -> AbortOutcome:
        """Abort exactly this transaction (not whatever its name holds now): idempotent, from any process.

        Every answer but RETRY_LATER is an end: nothing of the transaction is left to be committed, and nothing of it
        can appear. If the target has no trace of it, and cannot tell whether it was committed, that is UNKNOWN. Also
        called with a committable that the target has never seen.
        """

    @abstractmethod
    def lingering(self, scope: Scope) -> Iterable[Committable]:
        """List what is prepared or open in the target under exactly this pipeline's and sink's name.

        Transactions of another decision log under the same names are listed too, with their own `log`: the
        coordinator reports them and leaves them alone. Fields that the target's names do not carry are ANY_EPOCH.
        A handle may hold less than pre_commit's: while a decision waits for its commit, its transactions are recognized
        by name alone, so no name may be used again before its epoch is completed.
        """

    def lingering_elsewhere(self, pipeline: str, log: str) -> Iterable[Committable]:  # noqa: ARG002
        """List what is prepared or open in the same target under exactly this pipeline and log, for any sink's name.

        Through this sink, the coordinator aborts transactions of sinks that were renamed or removed, which no other
        sink would ever list. Only a start asks for them, before it asks for `lingering`. Default: nothing.
        """
        return ()

    def commit_many(self, committables: Sequence[Committable]) -> Sequence[CommitOutcome]:
        """Commit several transactions, in order; override it if one round trip can commit many.

        Sinks of one pipeline commit at the same time, each in a thread of its own.
        """
        return [self.commit(committable) for committable in committables]

    def inspect_many(self, committables: Sequence[Committable]) -> Sequence[Observation]:
        """Ask the target about each one. Called before the decision if much of transaction_timeout has passed.

        A commit that takes several steps, as the renaming of two files, is BEGUN after the first of them, until it is
        COMMITTED: such a transaction is visible in part, so the epoch is never taken back.
        """
        return [Observation.UNKNOWN for _ in committables]

    def why_silent(self, committables: Sequence[Committable]) -> str:  # noqa: ARG002
        """Return why `inspect_many` answers NO_ANSWER for some of them, and what to do, as the end of a message."""
        return "the target does not say what became of its transactions"

    def ledger(self) -> Ledger:
        """Return what the target remembers of decision logs, so that none writes what another has written.

        Called on the driver, and by commands. Default: the target remembers nothing.
        """
        return Ledger()

    def warm_up(self, context: WriteContext) -> None:
        """Prepare the next epoch's resources, in the worker, after pre_commit. Must not block for long."""


class DirectSink(Sink, Generic[Txn_co]):
    """A sink whose rows become visible as they are written, and again after a failure.

    The type parameter is that of its writer: a connection, a file.
    """

    @property
    def guarantee(self) -> Guarantee:
        """At least once: after a failure, the rows since the newest checkpoint are written again."""
        return Guarantee.AT_LEAST_ONCE

    @abstractmethod
    def open(self, context: WriteContext) -> Txn_co:
        """Open a writer for one subtask and epoch. Called at the epoch's first batch, in the process that writes."""

    @abstractmethod
    def write(self, writer: Txn_co, batch: pa.RecordBatch) -> None:  # type: ignore[misc]
        """Write one batch. Its rows may become visible at once."""

    def flush(self, writer: Txn_co) -> None:  # type: ignore[misc]
        """Return when all rows written so far are safe in the target. Called at the epoch's end."""

    def close(self, writer: Txn_co) -> None:  # type: ignore[misc]
        """Close the writer. Called after `flush`, and after a failure."""


class IdempotentSink(DirectSink[Txn_co]):
    """A sink in which writing the same rows again changes nothing, by key or by a marker kept with the data.

    After a failure its target shows older values for a while, until the rows since the newest checkpoint are written
    again; the final state is right.
    """

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EFFECTIVELY_ONCE


AnySink = TwoPhaseCommitSink[Any] | DirectSink[Any]


def by_urgency(sinks: Iterable[TwoPhaseCommitSink[Any]]) -> list[TwoPhaseCommitSink[Any]]:
    """Sort sinks, those first whose transactions expire soonest: they cannot wait for the others."""
    return sorted(sinks, key=_seconds_left)


def _seconds_left(sink: TwoPhaseCommitSink[Any]) -> float:
    try:
        timeout = sink.transaction_timeout
    except ExternalError:  # only a sink with a timeout asks its target: take it for the most urgent
        return 0.0
    return math.inf if timeout is None else timeout
