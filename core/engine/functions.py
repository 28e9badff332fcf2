"""What the author of a function writes and is handed. docs/operators.md is its page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError
from .state.keyed import NO_KEY, KeyedState, KeyScope, OperatorState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Record = dict[str, Any]


class FunctionContext:
    """What a function is told and may ask for.

    Attributes:
        uid: The operator.
        subtask: Which of its subtasks this is.
        parallelism: How many there are.
    """

    def __init__(
        self, uid: str, subtask: int, parallelism: int, scope: KeyScope | None, now: Callable[[], float]
    ) -> None:
        self.uid = uid
        self.subtask = subtask
        self.parallelism = parallelism
        self._scope = scope
        self._now = now

    @property
    def key(self) -> Any:
        """The key of the record or timer at hand; None outside."""
        return self._scope.key if self._scope is not None else None

    def now(self) -> float:
        """Processing time: seconds since 1970."""
        return self._now()

    def timer_at(self, seconds: float) -> None:
        """Call `on_timer` under the current key at or after this processing time, once.

        Raises:
            ConfigurationError: The stream is not keyed, or no key is at hand.
        """
        self._keyed().set_timer(seconds)

    def drop_timer(self, seconds: float) -> None:
        """Take a timer of the current key back."""
        self._keyed().drop_timer(seconds)

    def _keyed(self) -> KeyScope:
        if self._scope is None:
            raise ConfigurationError(NO_KEY)
        return self._scope


class ProcessFunction:
    """A function with state and timers. Subclass it; states are class attributes."""

    def open(self, context: FunctionContext) -> None:
        """Called once in each subtask, before the first record; operator state is restored."""

    def process(self, record: Record, context: FunctionContext) -> Iterable[Record]:
        """Handle one record; return or yield what follows from it."""
        raise NotImplementedError(f"{type(self).__name__} needs a method process(record, context)")

    def on_timer(self, at: float, context: FunctionContext) -> Iterable[Record]:  # noqa: ARG002 - for subclasses
        """Handle a timer that was set for `at`."""
        return ()

    def snapshot(self, checkpoint: int, context: FunctionContext) -> Iterable[Record] | None:  # noqa: ARG002
        """A checkpoint's barrier is next: give rows that were held back, and fill operator state.

        What it gives belongs to the checkpoint. Keyed state is not at hand.
        """
        return ()

    def on_checkpoint_complete(self, checkpoint: int, context: FunctionContext) -> None:
        """A checkpoint is completed, and what was written before its barrier is committed.

        Not called for a savepoint that commits nothing, nor for a checkpoint whose run has failed since: a later one
        stands for all before it.
        """

    def finish(self, context: FunctionContext) -> Iterable[Record]:  # noqa: ARG002 - for subclasses
        """The input has ended: give what was held back. Keyed state is not at hand."""
        return ()

    def close(self) -> None:
        """Called once at the end, also after a failure."""


def states_of(function: ProcessFunction) -> dict[str, KeyedState | OperatorState]:
    """The states that a function declares, by name."""
    found: dict[str, KeyedState | OperatorState] = {}
    for kind in reversed(type(function).__mro__):
        found |= {name: value for name, value in vars(kind).items() if isinstance(value, KeyedState | OperatorState)}
    return found
