"""The error tree.

Two branches: faults of the environment (a store, a broker or a database did not do what was asked) and promises of the
protocol that cannot be kept (this writer is fenced, data is lost, an epoch does not follow). A `ConfigurationError`
reports a wrong setting, and is raised before anything is written.

Every error can be pickled, with its context, because Spark sends errors from executors to the driver.
"""

from __future__ import annotations

from typing import Any, TypeVar

from .kit.secrets import without_logins


class OncewardError(Exception):
    """Base of all errors of this library.

    Args:
        message: Text that says what happened and what to do. Passwords in it are hidden where they can be recognized.
        pipeline: Name of the pipeline, if known.
        sink: Name of the sink, if known.
        epoch: Epoch number, if known.
        transaction: Name of the transaction in the external system, if known.
    """

    retryable: bool = False
    """True if the same call may succeed later although nobody changes anything."""
    refuses_rows: bool = False
    """True if the target refused rows for their values, so that it may take the other rows of the same transaction."""
    refuses_alone: bool = False
    """True if a row that is refused so alone is also refused after any other rows, as for a value that is too long.
    False if it may need rows before it: a trigger looks for them, or a foreign key to the same table."""

    def __init__(
        self,
        message: str,
        *,
        pipeline: str | None = None,
        sink: str | None = None,
        epoch: int | None = None,
        transaction: str | None = None,
    ) -> None:
        self.message = without_logins(str(message))  # an error given as the message, as to built-in ones
        self.pipeline = pipeline
        self.sink = sink
        self.epoch = epoch
        self.transaction = transaction
        super().__init__(self.message)

    def __str__(self) -> str:
        context = {
            "pipeline": self.pipeline,
            "sink": self.sink,
            "epoch": self.epoch,
            "transaction": self.transaction,
        }
        known = ", ".join(f"{key} {value}" for key, value in context.items() if value is not None)
        return f"{self.message} [{known}]" if known else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, dict(self.__dict__)))


class OncewardWarning(UserWarning):
    """Something in a program that works and is probably not meant, such as a pipeline without a store."""


E = TypeVar("E", bound=OncewardError)


def refusing_rows(error: E) -> E:
    """Mark an error as one by which rows are refused for values of their own, and return it."""
    error.refuses_rows = error.refuses_alone = True
    return error


def text_of(error: BaseException) -> str:
    """Return an error's text, or its class's name where it has no text."""
    return str(error).strip() or type(error).__name__


def named_text_of(error: BaseException) -> str:
    """Return an error's class and text, as a traceback ends, or its class alone where it has no text."""
    return f"{type(error).__name__}: {str(error).strip()}".removesuffix(": ")


def _rebuild(kind: type[OncewardError], message: str, state: dict[str, Any]) -> OncewardError:
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    return error


class ConfigurationError(OncewardError, ValueError):
    """A setting is missing, unknown or contradicts another; nothing was written."""


class MissingExtraError(ConfigurationError, ImportError):
    """A package that one of onceward's extras installs is missing, or too old; the message says which extra."""

    def __init__(self, message: str, *, name: str | None = None, **context: Any) -> None:
        super().__init__(message, **context)
        self.msg, self.name = self.message, name


class MissingNameError(ConfigurationError, AttributeError):
    """A name of the package `onceward` was asked for as an attribute, and its extra is missing."""

    def __init__(self, message: str, *, name: str | None = None, obj: object = None, **context: Any) -> None:
        super().__init__(message, **context)
        self.name, self.obj = name, obj


class NoDecisionLogError(ConfigurationError):
    """No decision log exists at the given location."""


class NewerFormatError(ConfigurationError):
    """The data was written by a newer version of the library."""


class SchemaError(ConfigurationError):
    """The data's schema does not fit the target; nothing was written. The message names the column."""


class ExternalError(OncewardError):
    """A fault of the environment: a store, a broker, a database or a source."""


class StoreError(ExternalError):
    """The store of the decision log failed. A put that raised this is in doubt: it may have happened."""

    retryable = True


class LogDamagedError(StoreError):
    """An entry of the decision log cannot be read as it was written."""

    retryable = False


class StateError(ExternalError):
    """State of the embedded engine could not be written out or read back."""


class StateDamagedError(StateError):
    """A file of a checkpoint or savepoint is missing, or not what was written. The message names it."""


class CheckpointFailedError(OncewardError):
    """A checkpoint or savepoint that was requested could not be made. The message says why."""


class OperatorError(OncewardError):
    """A function of a pipeline failed. The message names operator, subtask and record."""


class SourceError(ExternalError):
    """A source cannot deliver what was asked for, for example offsets older than its retention."""


class SinkError(ExternalError):
    """An external system refused or failed an operation of a sink."""


class KafkaError(SinkError):
    """Kafka refused or failed an operation."""


class SqlError(SinkError):
    """A database refused or failed an operation.

    Attributes:
        remedy: Change by which the table takes refused rows; empty if the database's error code does not show one.
        of_rows: True if correcting the rows would help, too.
    """

    remedy: str = ""
    of_rows: bool = True


class PostgresError(SqlError):
    """PostgreSQL refused or failed an operation."""


class RetryableSinkError(SinkError):
    """A sink operation failed with a fault that may be temporary."""

    retryable = True


class TargetWentBackError(RetryableSinkError):
    """A target went back to an older state, and what it had as prepared again was committed again; restart the run."""


class ProtocolError(OncewardError):
    """A promise of the commit protocol cannot be kept by this process."""


class FencedError(ProtocolError):
    """A newer writer of the same pipeline has started; this one may not write, decide, commit or abort."""


class DecisionInDoubtError(ProtocolError):
    """The store did not answer when the decision was written: the decision may exist, or appear later.

    Nothing may be aborted until a restart has found out.
    """

    retryable = True


class EpochConflictError(ProtocolError):
    """The epoch offered does not follow the newest decided one, or its input differs from what was decided."""


class EpochVoidedError(EpochConflictError):
    """An epoch was decided, and none of it could be committed: its decision is void, and it can be written again."""

    retryable = True


class DataLossError(ProtocolError):
    """A transaction named by a durable decision can no longer be committed."""


class EpochTornError(DataLossError):
    """Some of a decided epoch is visible and some is lost; what is lost can be written again from the same input.

    Attributes:
        lost: The lost transactions, as committables.
    """

    retryable = True
    lost: tuple[Any, ...] = ()


class DeadLetterLimitError(OncewardError):
    """Targets refused more rows of an epoch than its limit allows. Nothing of the epoch was decided."""


class CommitPendingError(ProtocolError):
    """A decided transaction could not be committed yet; the decision remains valid, and a restart commits it."""

    retryable = True


class LifecycleError(ProtocolError):
    """A step that the transaction's state does not allow, or a sink whose method returned something unusable: a bug."""
