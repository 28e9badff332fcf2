"""What the first driver process of a micro-batch knows, as it travels to the executors and comes back.

Spark asks for a stream writer in two driver-side Python processes per micro-batch: the first creates it and pickles
it, the second creates its own right before commit or abort. So START, the finishing of decided epochs and the sweep
happen when the writer is pickled, before any executor runs; the writer's token travels inside it and comes back in
each commit message. Nothing is kept in a process: it lives on across batches and even across query runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from onceward.core.checkpoint import Coordinator
from onceward.core.errors import EpochConflictError, ProtocolError
from onceward.core.log import WriterToken
from onceward.core.log.view import NONE
from onceward.core.transaction import WriteContext

from .store import local_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onceward.core.checkpoint import CommitPolicy
    from onceward.core.log import EpochInput, LogStore
    from onceward.sinks.base import TwoPhaseCommitSink


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """One START of one pipeline, ready to be written under.

    Attributes:
        pipeline: Its name.
        query: The query's id, or the batch's run key.
        token: The writer.
        decided: Newest decided epoch; NONE for none.
        completed: Newest completed epoch.
        adopt: Whether the first epoch may be any.
        since: When, in seconds on the monotonic clock, which is the same for all processes of a machine: no transaction
            of the epoch is older.
        local_store: The decision log's store, if one machine alone sees it.
    """

    pipeline: str
    query: str
    token: WriterToken
    decided: int
    completed: int
    adopt: bool = False
    since: float
    local_store: str = ""

    def is_replay(self, epoch: int) -> bool:
        """Whether the epoch is decided: then nothing is written.

        Raises:
            EpochConflictError: It is neither the newest decided one nor the next.
        """
        if self.decided == NONE:
            if epoch != 0 and not self.adopt:
                raise self._conflict(epoch, "the decision log is empty, but this is not the query's first epoch")
            return False
        if epoch == self.decided:
            return True
        if epoch != self.decided + 1:
            raise self._conflict(epoch, f"its newest decided epoch is {self.decided}")
        return False

    def context(self, sink: str, epoch: int, *, subtask: int, attempt: int, session: str) -> WriteContext:
        """The context of one attempt of one subtask."""
        return WriteContext(
            pipeline=self.pipeline,
            sink=sink,
            log=self.token.log,
            writer=self.token.start,
            epoch=epoch,
            subtask=subtask,
            attempt=attempt,
            completed=self.completed,
            session=session,
        )

    def _conflict(self, epoch: int, why: str) -> EpochConflictError:
        return EpochConflictError(
            f"{why}. Probably an older or a new checkpoint is used with this pipeline's name: give the pipeline "
            "another name, use the checkpoint that belongs to it, or go back on purpose with option('rewind', why). "
            "If the query ran with another sink until now, say option('adopt', 'true')",
            pipeline=self.pipeline,
            epoch=epoch,
        )


def open_writer(
    pipeline: str,
    query: str,
    store: LogStore,
    sink: TwoPhaseCommitSink[Any],
    policy: CommitPolicy,
    *,
    adopt: bool = False,
    rewind: str | None = None,
    offered: tuple[int, EpochInput] | None = None,
) -> Opened:
    """Put START, sweep, finish what is decided; return what travels with the writer.

    Args:
        pipeline: See Opened.
        query: See Opened.
        store: Of the decision log.
        sink: Where the epoch goes.
        policy: Of the coordinator.
        adopt: See exactly_once.
        rewind: See exactly_once.
        offered: The epoch that will be written and its input, if they are known; needed for a rewind.
    """
    since = policy.monotonic()
    epoch, about = offered if offered is not None else (None, None)
    coordinator = Coordinator(pipeline, store, [sink], policy)
    coordinator.open(rewind=rewind, first_epoch=epoch, query=query, epoch_input=about)
    view = coordinator.view
    return Opened(
        pipeline=pipeline,
        query=query,
        token=coordinator.writer.token,
        decided=view.decided,
        completed=view.completed,
        adopt=adopt or view.rewound,
        since=since,
        local_store=local_store(store),
    )


def one_token(openings: Sequence[Opened]) -> Opened:
    """The one START that all messages name.

    Raises:
        ProtocolError: They name several: Spark mixed the messages of two writers.
    """
    if len({opened.token for opened in openings}) != 1:
        raise ProtocolError("the commit messages come from different writers; nothing was decided")
    return openings[0]
