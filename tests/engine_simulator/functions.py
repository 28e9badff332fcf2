"""The functions with state of the random programs. They are confluent: see graphs.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onceward.core import ListState, MapState, ProcessFunction, ValueState

from ..engine_kit import typed

if TYPE_CHECKING:
    from collections.abc import Iterator

Record = dict[str, Any]


def shown(value: Any) -> str:
    """A value with all its types, as text."""
    return repr(typed(value))


class Counting(ProcessFunction):
    """Numbers the rows of each key: 1, 2, 3, …"""

    seen = ValueState(default=0)

    def process(self, record: Record, context: Any) -> Iterator[Record]:  # noqa: ARG002 - signature
        self.seen.set(self.seen.get() + 1)
        yield {**record, "seen": self.seen.get()}


LONG = 1e9
"""Seconds."""


class CountingForAWhile(Counting):
    """The same, with a time to live that no run of the simulator reaches."""

    seen = ValueState(default=0, ttl=LONG)


class Counted(ProcessFunction):
    """Numbers the rows of each key out of running totals: each number comes once, in whatever batches rows came.

    Args:
        totals: By key: how many rows there will be in the end, and the sum of their numbers. The last number has it.
    """

    before = ValueState(default=0)

    def __init__(self, totals: dict[str, tuple[int, int]]) -> None:
        self.totals = totals

    def process(self, record: Record, context: Any) -> Iterator[Record]:
        count, _ = self.totals[shown(context.key)]
        for seen in range(self.before.get() + 1, record["rows"] + 1):
            yield {"k": context.key, "seen": seen, "total": record["total"] if seen == count else 0}
        self.before.set(record["rows"])


class Windows(ProcessFunction):
    """Gives each record at once, and once more at its key's timer, or at the end; numbers both together.

    Args:
        delay: Seconds from the first record that waits to the timer.
        moves: Each record moves the timer, as that of a session.
        ends: The end of the input ends the windows. Else timers stay in the state.
    """

    seen = ValueState(default=0)
    waiting = ListState()
    due = ValueState[Any](None)

    def __init__(self, delay: float, *, moves: bool, ends: bool) -> None:
        self.delay, self.moves, self.ends = delay, moves, ends

    def process(self, record: Record, context: Any) -> Iterator[Record]:
        due = self.due.get()
        if due is not None and self.moves:
            context.drop_timer(due)
        if due is None or self.moves:
            self.due.set(context.now() + self.delay)
            context.timer_at(self.due.get())
        self.waiting.append(record)
        yield self._numbered(record, "row", context)

    def on_timer(self, at: float, context: Any) -> Iterator[Record]:
        if at == self.due.get() and at <= context.now():
            yield from self._waiting(context)
        else:
            yield self._numbered({"n": -1, "k": context.key}, f"timer that is not set, or not due yet: {at}", context)

    def on_end(self, key: Any, context: Any) -> Iterator[Record]:  # noqa: ARG002 - signature
        if self.ends and self.due.get() is not None:
            context.drop_timer(self.due.get())
            yield from self._waiting(context)

    def _waiting(self, context: Any) -> Iterator[Record]:
        for record in self.waiting.get():
            yield self._numbered(record, "window", context)
        self.waiting.clear()
        self.due.clear()

    def _numbered(self, record: Record, by: str, context: Any) -> Record:
        self.seen.set(self.seen.get() + 1)
        return {**record, "seen": self.seen.get(), "by": by, "key": shown(context.key)}


class InOrder(ProcessFunction):
    """Says how far the number of each row is from the one before it.

    Args:
        ordered: The rows of a key have one order; each also tells which row of its kind was before it.
    """

    last = ValueState(default=0)
    before = MapState()

    def __init__(self, *, ordered: bool) -> None:
        self.ordered = ordered

    def process(self, record: Record, context: Any) -> Iterator[Record]:  # noqa: ARG002 - signature
        answer = {name: value for name, value in record.items() if name != "seen"}
        answer["gap"] = record["seen"] - self.last.get() - 1
        self.last.set(record["seen"])
        if self.ordered:
            by = record.get("by", "row")
            answer["before"] = self.before.get(by)
            self.before.put(by, record["n"])
        yield answer
