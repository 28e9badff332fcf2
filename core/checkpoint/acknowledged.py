"""Between the acknowledgements and the decision (invariant 2): are they all, of this epoch, still prepared?"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import DataLossError, ProtocolError
from ..transaction import Acknowledgement, Committable, Observation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..log import WriterToken
    from ..sink import TwoPhaseCommit

_log = logging.getLogger("onceward.coordinator")


class Written(NamedTuple):
    """Whose writing the acknowledgements must be of."""

    pipeline: str
    token: WriterToken
    epoch: int
    earliest: int
    """Epoch of the oldest transactions that may be among them."""

    def refuse(self, why: str) -> ProtocolError:
        """The error for acknowledgements that are not."""
        return ProtocolError(f"{why}; nothing was decided", pipeline=self.pipeline, epoch=self.epoch)


def gather(
    written: Written, sinks: Mapping[str, TwoPhaseCommit[Any]], acknowledgements: Sequence[Acknowledgement]
) -> list[Committable]:
    """The committables in the order of epochs and subtasks.

    Raises:
        ProtocolError: An acknowledgement or committable is not of this epoch and writer, or counts twice.
    """
    subtasks: set[int] = set()
    for ack in acknowledgements:
        if ack.epoch != written.epoch or set(ack.sinks) != sinks.keys() or ack.subtask in subtasks:
            raise written.refuse(f"acknowledgement of subtask {ack.subtask} is not of this epoch: {ack}")
        subtasks.add(ack.subtask)
    found = [c for ack in sorted(acknowledgements, key=lambda ack: ack.subtask) for c in ack.committables]
    found.sort(key=lambda c: c.epoch)
    mine = (written.pipeline, written.token.log, written.token.start)
    for c in found:
        here = written.earliest <= c.epoch <= written.epoch
        if (c.pipeline, c.log, c.writer) != mine or not here or c.sink not in sinks:
            raise written.refuse(f"committable {c.transaction} was not written for this epoch by this writer")
    if len({c.identity() for c in found}) != len(found):
        raise written.refuse("two subtasks acknowledged the same transaction")
    return found


def check_age(
    written: Written, sinks: Mapping[str, TwoPhaseCommit[Any]], committables: Sequence[Committable], *, age: float
) -> None:
    """Ask the targets whether old transactions are still there, before a decision names them.

    Args:
        written: Whose they are.
        sinks: All sinks by name.
        committables: What was acknowledged.
        age: Seconds since the epoch began.

    Raises:
        DataLossError: One has ended.
    """
    for sink in sinks.values():
        mine = [c for c in committables if c.sink == sink.name]
        timeout = sink.transaction_timeout
        if not mine or timeout is None or age <= timeout / 4:
            continue
        _log.warning("epoch %s is %.0f s old; sink %s's timeout is %.0f s", written.epoch, age, sink.name, timeout)
        states = zip(mine, sink.inspect_many(mine), strict=True)
        gone = [c for c, state in states if state in (Observation.ABORTED, Observation.EXPIRED)]
        if gone:
            error = DataLossError(
                f"{len(gone)} transactions ended before they were decided, after {age:.0f} s (timeout {timeout:.0f} "
                "s). Nothing was committed; a restart writes the epoch again. Make epochs shorter or the timeout "
                "longer",
                pipeline=written.pipeline,
                sink=sink.name,
                epoch=written.epoch,
                transaction=gone[0].transaction,
            )
            error.retryable = True  # nothing was decided
            raise error
