"""May this epoch be written, and may it be decided? Judged by what the log says, and by what the subtasks answered.

An epoch is admitted if it is the next one (log rule 5) and its input begins where the newest
decided one's ended (invariant 5). It is decided if every acknowledgement and committable is of this epoch and writer
(invariant 2), and what is old is still there.
"""

from __future__ import annotations

import logging
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from ..contract import validated as answers
from ..contract.transaction import Acknowledgement, Committable, Observation
from ..errors import DataLossError, EpochConflictError, ProtocolError
from ..log.view import NONE, check_next, may_follow
from .numbering import CONSECUTIVE, EpochNumbering

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..contract.sink import TwoPhaseCommitSink
    from ..log import Decide, EpochInput, LogView, LogWriter, Rewound

_log = logging.getLogger("onceward.coordinator")


class Admission(StrEnum):
    """What to do with an offered epoch."""

    NEW = "new"
    """The epoch is new: write it."""
    REPLAY = "replay"
    """The epoch is decided and completed: write nothing, succeed."""
    HEAL = "heal"
    """The epoch is decided and visible in part: write what is lost of it."""


def admission(
    view: LogView, epoch: int, epoch_input: EpochInput, *, adopt: bool = False, numbering: EpochNumbering = CONSECUTIVE
) -> Admission:
    """Say whether an epoch is new or the replay of the newest decided one (invariants 3 and 5).

    With `adopt`, any first epoch of an empty log is accepted.

    Raises:
        EpochConflictError: It is neither.
    """
    if view.undone is not None:
        check_next(view, epoch)
    if _is_replay(view, epoch, epoch_input):
        return Admission.REPLAY
    if view.newest is not None and epoch == view.newest.epoch:
        check_decided_from(view, epoch_input)
    if view.decided == NONE and not (numbering.may_be_first(epoch) or adopt or view.rewound):
        raise EpochConflictError(
            "the decision log is empty but the query is not at its first epoch, so it is unknown whether the "
            "earlier epochs were written. If the query ran with another sink until now, set adopt=True (for a format: "
            "option('adopt', 'true')); if the log was deleted, restore it",
            pipeline=view.pipeline,
            epoch=epoch,
        )
    check_next(view, epoch, numbering.follows(view))
    check_continues(view, epoch, epoch_input, numbering)
    return Admission.NEW


def check_decided_from(view: LogView, epoch_input: EpochInput) -> None:
    """Refuse a checkpoint whose input of the newest decided epoch is another than that of the decision.

    Raises:
        EpochConflictError: It is.
    """
    newest = view.newest
    if newest is not None and not newest.input.same_as(epoch_input):
        raise EpochConflictError(
            "this epoch was decided with other input. The checkpoint's offsets differ from those of the decision: "
            "another checkpoint, another query, or a changed offsets file",
            pipeline=view.pipeline,
            epoch=newest.epoch,
        )


def datasets_of(sinks: Mapping[str, TwoPhaseCommitSink[Any]]) -> dict[str, str]:
    """Return the name of each sink's dataset, without its address, which may have several; empty if it does not say."""
    datasets = {name: sink.dataset() for name, sink in sinks.items()}
    return {name: str(dataset[1]) if dataset is not None else "" for name, dataset in datasets.items()}


def check_same_sinks(view: LogView, sinks: Mapping[str, TwoPhaseCommitSink[Any]]) -> None:
    """Refuse the replay of an epoch that was decided without one of the sinks, or into another dataset of it.

    A replay writes nothing, so that sink or dataset would never get its rows.
    """
    newest = view.newest
    if newest is None:
        return
    changed, before = sorted(sinks.keys() - set(newest.sinks)), ", ".join(sorted(newest.sinks))
    why = f"this epoch was decided before {', '.join(changed)} took part"
    if not changed:
        now = datasets_of(sinks)
        changed = [name for name in sorted(sinks) if newest.datasets.get(name, now[name]) != now[name]]
        others = [f"{name} writes to {now[name] or 'another target'}" for name in changed]
        before = ", ".join(f"{name} to {newest.datasets[name] or 'its former target'}" for name in changed)
        why = f"this epoch was decided before {', '.join(others)}"
    if changed:
        raise EpochConflictError(
            f"{why}, and is only recorded as done now, so {', '.join(changed)} would never get its rows. Start once "
            f"more with the sinks as they were ({before}) and let one micro-batch end; then change them",
            pipeline=view.pipeline,
            epoch=view.decided,
        )


def check_sinks(decision: Decide, sinks: Mapping[str, TwoPhaseCommitSink[Any]]) -> None:
    """Refuse a decision that names sinks that the pipeline no longer has, with an EpochConflictError."""
    missing = sorted({c.sink for c in decision.committables} - sinks.keys())
    if missing:
        raise EpochConflictError(
            f"epoch {decision.epoch} is decided and names transactions of sinks that this pipeline no longer has: "
            f"{missing}. Start once more with these sinks, so that their transactions can be committed",
            pipeline=decision.pipeline,
            epoch=decision.epoch,
        )


def check_continues(view: LogView, epoch: int, epoch_input: EpochInput, numbering: EpochNumbering) -> None:
    """Raise EpochConflictError unless the input begins where the newest decided one ended (invariant 5).

    Comparing the epochs' numbers would not be enough.
    """
    check_query(view, epoch_input.query, numbering)
    before = view.before
    if before is not None and not epoch_input.follows(before):
        raise EpochConflictError(
            f"its input does not begin where the previous epoch ended ({epoch_input.start}, not {before.end}): rows "
            "would be skipped or written twice. Use the checkpoint that belongs to this pipeline, or go back on "
            "purpose with an explicit rewind",
            pipeline=view.pipeline,
            epoch=epoch,
        )


def check_query(view: LogView, query: str | None, numbering: EpochNumbering) -> None:
    """Refuse a query that neither decided the newest epoch nor went back."""
    owner = numbering.owner(view)
    if None not in (query, owner) and query != owner:
        raise EpochConflictError(
            f"another query ({owner}, not {query}) decided the newest epoch, or rewound the pipeline. Use the "
            "checkpoint that belongs to this pipeline, give the pipeline another name, or go back on purpose with an "
            "explicit rewind",
            pipeline=view.pipeline,
        )


def goes_back(view: LogView, wanted: Rewound | None, epoch_input: EpochInput | None) -> bool:
    """Return whether the rewind that is asked for is still to be done.

    (Rule C) It is done once: its reason stays in the command line, where it must not open the way for whatever
    checkpoint is offered later. So a reason that was used before is never permission for another rewind.

    Raises:
        EpochConflictError: A rewind with this reason was done, and the epoch that is offered does not follow.
    """
    if wanted is None:
        return False
    if epoch_input is not None and _is_replay(view, wanted.epoch, epoch_input):
        return False  # the newest decision's own epoch: the driver died before it logged it
    done = view.rewind
    if done is None or wanted.why not in (done.why, *done.earlier):
        return True
    if wanted.epoch == NONE or may_follow(view, wanted.epoch):
        if wanted.query == done.query or (view.before is not None and wanted.query == view.before.query):
            return False
        if view.rewound and wanted.why == done.why:
            return True  # nothing was decided since: it goes back to the same epoch with a checkpoint made anew
    when = f" at epoch {done.epoch}" if wanted.why == done.why and done.epoch != NONE else ""
    raise EpochConflictError(
        f"a rewind with this reason ({wanted.why!r}) was done before{when}, and epoch {wanted.epoch} does not go on "
        f"from there: the newest decided one is {view.decided}. A rewind is done once for each reason, which may have "
        "stayed in the command line. Use the checkpoint that belongs to this pipeline; or, to go back once more on "
        "purpose, give another reason",
        pipeline=view.pipeline,
        epoch=wanted.epoch,
    )


def go_back(writer: LogWriter, rewind: Rewound) -> None:
    """Become the newest writer, and go back with this reason unless that was done before.

    Raises:
        EpochConflictError: The pipeline may not go back so.
        FencedError: Another writer has started at the same time.
    """
    view = writer.start()
    if goes_back(view, rewind, None):
        writer.rewind(with_earlier(rewind, view.rewind))


def with_earlier(rewind: Rewound, before: Rewound | None) -> Rewound:
    """Return the rewind, with the reasons of those that were done before it, by whatever query."""
    if before is None:
        return rewind
    earlier = tuple(why for why in (*before.earlier, before.why) if why != rewind.why)
    return msgspec.structs.replace(rewind, earlier=earlier)


def _is_replay(view: LogView, epoch: int, epoch_input: EpochInput) -> bool:
    newest = view.newest
    return newest is not None and epoch == newest.epoch and newest.input.same_as(epoch_input)


def gather(
    writer: LogWriter,
    sinks: Mapping[str, TwoPhaseCommitSink[Any]],
    epochs: range,
    acknowledgements: Sequence[Acknowledgement],
) -> list[Committable]:
    """Return the committables of every subtask's acknowledgement, in the order of epochs and subtasks.

    The last of the epochs is acknowledged; from the others there may be transactions that are not decided yet.

    Raises:
        ProtocolError: An acknowledgement or committable is not of this epoch and writer, or counts twice.
    """

    def refuse(why: str) -> ProtocolError:
        return ProtocolError(f"{why}; nothing was decided", pipeline=writer.pipeline, epoch=epochs[-1])

    subtasks: set[int] = set()
    for ack in acknowledgements:
        if ack.epoch != epochs[-1] or set(ack.sinks) != sinks.keys() or ack.subtask in subtasks:
            raise refuse(f"acknowledgement of subtask {ack.subtask} is not of this epoch: {ack}")
        subtasks.add(ack.subtask)
    committables = [c for ack in sorted(acknowledgements, key=lambda ack: ack.subtask) for c in ack.committables]
    committables.sort(key=lambda c: c.epoch)
    identity = (writer.pipeline, writer.token.log, writer.token.start)
    for c in committables:
        if (c.pipeline, c.log, c.generation) != identity or c.epoch not in epochs or c.sink not in sinks:
            raise refuse(f"committable {c.transaction} was not written for this epoch by this writer")
    if len({c.identity() for c in committables}) != len(committables):
        raise refuse("two subtasks acknowledged the same transaction")
    return committables


def check_age(
    pipeline: str,
    sinks: Mapping[str, TwoPhaseCommitSink[Any]],
    epoch: int,
    committables: Sequence[Committable],
    *,
    age: float,
) -> None:
    """Ask the targets whether old transactions are still there, before a decision names them; else a DataLossError.

    `age` is in seconds since the epoch began.
    """
    for sink in sinks.values():
        own = [c for c in committables if c.sink == sink.name]
        timeout = sink.transaction_timeout
        if not own or timeout is None or age <= timeout / 4:
            continue
        _log.warning(
            "epoch %s is %.0f s old; sink %s's timeout is %.0f s",
            epoch,
            age,
            sink.name,
            timeout,
            extra={"pipeline": pipeline, "sink": sink.name, "epoch": epoch},
        )
        observations = answers.of_each(sink, "inspect_many", own, sink.inspect_many(own), Observation)
        gone = [
            c for c, state in observations if state in (Observation.ABORTED, Observation.EXPIRED, Observation.ABSENT)
        ]
        if gone:
            error = DataLossError(
                f"{len(gone)} transactions ended before they were decided, after {age:.0f} s (timeout {timeout:.0f} "
                "s). Nothing was committed; a restart writes the epoch again. Make epochs shorter or the timeout "
                "longer",
                pipeline=pipeline,
                sink=sink.name,
                epoch=epoch,
                transaction=gone[0].transaction,
            )
            error.retryable = True  # nothing was decided
            raise error
