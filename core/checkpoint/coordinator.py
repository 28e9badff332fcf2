"""One epoch after another: admit, decide, commit, complete. The driver's half of the protocol.

The same coordinator serves the embedded engine, `exactly_once` (foreachBatch) and the Spark formats; only the way of
barriers and acknowledgements differs.

1. `open` puts START, sweeps, and finishes what is decided: after it, nothing of any earlier writer can be decided.
   The sweep comes first, so that readers of one target do not wait for a commit in another.
2. `admit` says whether the offered epoch is new or the replay of the newest decided one (invariants 3 and 5).
3. `commit` checks the acknowledgements (invariant 2), decides once for all sinks, commits, and puts COMPLETED before
   it returns: so the next epoch's writing begins after it (log rule 3).
"""

from __future__ import annotations

import logging
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

from ..contract import validated as answers
from ..contract.connector import address_to_note
from ..contract.events import (
    EpochAbandoned,
    EpochBegan,
    EpochCompleted,
    LostRewritten,
    Started,
    Took,
    moment,
    tell,
    wall_clock,
)
from ..contract.names import check_pipeline_name
from ..contract.policy import CommitPolicy
from ..contract.transaction import Acknowledgement, Committable, WriteContext
from ..errors import (
    ConfigurationError,
    DataLossError,
    EpochConflictError,
    EpochTornError,
    EpochVoidedError,
    ExternalError,
    FencedError,
    OncewardError,
    StoreError,
    TargetWentBackError,
)
from ..kit.crash_points import Step, crash_point
from ..kit.text_options import check_type
from ..log import EpochInput, LogStore, LogView, LogWriter, Rewound, RunWriters, WriterToken
from ..log.notes import tell_and_note
from ..log.view import NONE
from ..log.writer import check_owner
from .admission import (
    Admission,
    admission,
    check_age,
    check_query,
    check_same_sinks,
    datasets_of,
    gather,
    goes_back,
    with_earlier,
)
from .commit import finish
from .healing import Lost, check_same_rows
from .numbering import CONSECUTIVE, EpochNumbering
from .recovery import Swept, sweep
from .target_check import check_kept
from .void import check_can_end, end_rewound

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ..contract.sink import TwoPhaseCommitSink
    from ..contract.transaction import Written
    from ..log import CommitPermit, Decide

_log = logging.getLogger("onceward.coordinator")


class Coordinator:
    """The driver's half of the protocol for one run of one pipeline.

    Args:
        pipeline: Name of the pipeline.
        store: Store of the pipeline's decision log.
        sinks: All its sinks, with unique names.
        policy: Policy of the run: how to handle losses, and how often and how long to try.
        numbering: Numbering of the epochs: consecutive, as Spark's micro-batches are, or checkpoints with gaps.
        heals: True if the driver can compute a decided epoch again from the same input, to write what is lost of it.
        run_writers: The run, if it starts again after failures by itself; see LogWriter.
    """

    def __init__(
        self,
        pipeline: str,
        store: LogStore,
        sinks: Sequence[TwoPhaseCommitSink[Any]],
        policy: CommitPolicy | None = None,
        *,
        numbering: EpochNumbering = CONSECUTIVE,
        heals: bool = False,
        run_writers: RunWriters | None = None,
    ) -> None:
        self.pipeline = check_pipeline_name(pipeline)
        self.sinks = {sink.name: sink for sink in sinks}
        if len(self.sinks) != len(sinks) or not (sinks or not numbering.needs_sinks):
            raise ConfigurationError("a pipeline needs at least one sink, each with a name of its own")
        self.numbering = numbering
        self.heals = heals
        self.lost: Lost | None = None
        """What is lost of the decision that waits, and shall be written again."""
        self._torn: EpochTornError | None = None
        self._went_back: TargetWentBackError | None = None
        self.policy = policy or CommitPolicy()
        self.writer = LogWriter(store, pipeline, self.policy, run_writers)
        self._began = self.policy.monotonic()
        self._left_behind = False
        self._swept, self._last_sweep = self._began, Swept()

    @property
    def view(self) -> LogView:
        """What the log said when it was last read."""
        return self.writer.view

    def open(
        self,
        *,
        rewind: str | None = None,
        first_epoch: int | None = None,
        query: str | None = None,
        epoch_input: EpochInput | None = None,
    ) -> LogView:
        """Become the newest writer, abort what lingers, finish what is decided.

        A rewind is done once: the same query that asks for it again in the same words goes on instead, and so does one
        that offers the newest decided epoch from the same input.

        Args:
            rewind: Reason why the pipeline goes back to an older state on purpose; None if it does not.
            first_epoch: The only epoch that may follow the rewind; None for whichever the driver offers first.
            query: Identity of the query that will run the epochs. If another one decided the newest, that one is not
                fenced by a mistake.
            epoch_input: Input of the first epoch, if that is known.

        Raises:
            ConfigurationError: `rewind` is no text, or empty.
            FencedError: Another writer started at the same time.
            EpochConflictError: A target knows this pipeline's name from another decision log or from a newer state of
                this one, or a rewind that was done already is asked for again.
            CommitPendingError: A decided transaction could not be committed yet.
            DataLossError: A decided transaction can no longer be committed.
            SinkError: A target did not answer; the others were swept and committed.
            StoreError: The store did not answer.
        """
        wanted, began = None, self.policy.monotonic()
        if rewind is not None:
            check_type("rewind", rewind, str)
            if not rewind.strip():
                raise ConfigurationError("rewind is empty: say why the pipeline goes back", pipeline=self.pipeline)
            wanted = Rewound(query=query or "", epoch=NONE if first_epoch is None else first_epoch, why=rewind)
        before = self.writer.look() if query is not None or wanted is not None else None
        if before is not None:
            check_owner(before, self.pipeline, self.writer.store)
            if goes_back(before, wanted, epoch_input):
                check_can_end(before, self.sinks)  # before anybody is fenced
            else:
                check_query(before, query, self.numbering)
        # Step 1 (START): from here on no older writer can decide.
        crash_point(Step.START_BEFORE)
        self.writer.start()
        crash_point(Step.START_AFTER)
        back = goes_back(self.view, wanted, epoch_input)
        self.lost = self._torn = None
        # A rewind is checked, then written; only then do the targets forget, below.
        finished = self._go_back(wanted) if back and wanted is not None else ()
        unowned = self._own_names()
        # Step 2 (sweep): before anything is committed, so that readers of one target do not wait for another.
        # Step 3 (finish): a target that has lost something gets no commits until the policy has decided.
        unswept = self._sweep_now(abandoned=True, skip=unowned)
        hold = {name for name, error in unowned.items() if isinstance(error, DataLossError)}
        finished = finished or self._finish_decided(hold)
        if self.view.taken_back is not None:
            end_rewound(self.view.taken_back, self.sinks, self.writer)
        if unowned and finished and not self.view.rewound:
            unowned, unasked = self._ask_again(unowned), unowned
            if unasked.keys() - unowned.keys():  # they were not swept, because they had not said whose they are
                unswept = self._sweep_now(abandoned=True, skip=unowned) or unswept
        for error in (*unowned.values(), unswept):
            if error is not None:
                raise error
        started = Started(
            pipeline=self.pipeline,
            epoch=self.view.decided if self.view.newest is not None else None,
            completed=next((moment(done.at) for _, done in reversed(self.view.decisions) if done is not None), None),
            log=self.view.log,
            store=self.writer.store.describe(),
            finished=finished,
            aborted=self._last_sweep.aborted,
            seconds=self.policy.monotonic() - began,
            guarantees={name: str(sink.guarantee) for name, sink in self.sinks.items()},
            position=self.view.start,
            timeouts=self._timeouts,
            targets=self._targets,
        )
        tell_and_note(started, self.writer.store)
        return self.view

    def _timeouts(self) -> dict[str, float]:
        """Return by sink, as far as it is known, after how many seconds its target ends an open transaction."""
        timeouts: dict[str, float] = {}
        for name, sink in self.sinks.items():
            with suppress(Exception):  # somebody's sink, or a target that does not answer now: only a note needs it
                timeout = sink.transaction_timeout
                timeouts |= {name: timeout} if timeout is not None else {}
        return timeouts

    def _targets(self) -> dict[str, dict[str, Any]]:
        """Return by sink where it writes, without secrets; empty for one whose transactions have no address."""
        return {name: address_to_note(sink) for name, sink in self.sinks.items()}

    def resume(self, token: WriterToken, lost: Collection[str] = ()) -> None:
        """Go on as the writer of `token`, which another process opened.

        Args:
            token: Token of the writer.
            lost: Names of the lost transactions that it writes again.

        Raises:
            FencedError: Another writer has started since.
        """
        self.writer = LogWriter.resume(self.writer.store, self.pipeline, self.policy, token)
        undone = self.view.undone
        if lost and undone is not None:
            self.lost = Lost(undone, tuple(c for c in undone.committables if c.transaction in lost), undone.subtasks)

    def admit(self, epoch: int, epoch_input: EpochInput, *, adopt: bool = False) -> Admission:
        """Say whether the epoch is new, the replay of the newest decided one, or one that has lost something.

        Args:
            epoch: The driver's epoch number.
            epoch_input: Input that the epoch will be computed from.
            adopt: Accept any first epoch of an empty log (the query ran with another sink before).

        Raises:
            EpochConflictError: It is none of these, or it is a replay of which a sink would get nothing.
        """
        if self.lost is not None:
            if epoch != self.lost.decision.epoch or not self.lost.decision.input.same_as(epoch_input):
                raise self._torn or EpochConflictError(
                    f"epoch {self.lost.decision.epoch} is decided, and what it lost is to be written first",
                    pipeline=self.pipeline,
                    epoch=epoch,
                )
            check_same_sinks(self.view, self.sinks)
            self._began = self.policy.monotonic()
            return Admission.HEAL
        # Step 4 (admit).
        admitted = admission(self.view, epoch, epoch_input, adopt=adopt, numbering=self.numbering)
        if admitted is Admission.REPLAY:
            check_same_sinks(self.view, self.sinks)
        if admitted is Admission.NEW:
            self._began = self.policy.monotonic()
        if admitted is Admission.NEW and not self.numbering.overlapping:
            tell(EpochBegan(self.pipeline, wall_clock()))
        return admitted

    def context(self, sink: str, epoch: int, *, subtask: int, attempt: int = 0) -> WriteContext:
        """Return the context in which a subtask writes an admitted epoch."""
        token = self.writer.token
        return WriteContext(
            pipeline=self.pipeline,
            sink=sink,
            log=token.log,
            generation=token.start,
            epoch=epoch,
            subtask=subtask,
            attempt=attempt,
            completed=self.view.completed,
            heals=self.heals,
        )

    def commit(
        self,
        epoch: int,
        acknowledgements: Sequence[Acknowledgement],
        epoch_input: EpochInput,
        *,
        state: dict[str, Any] | None = None,
        sweep_after: bool = False,
        age: float | None = None,
    ) -> None:
        """Decide the epoch and commit it everywhere; it is COMPLETED when this returns.

        Args:
            epoch: An admitted epoch.
            acknowledgements: Acknowledgements of all subtasks, one of each.
            epoch_input: The same that was admitted.
            state: State handles of the embedded engine.
            sweep_after: Also abort what attempts that do not count may have left behind.
            age: Seconds since the oldest of the transactions may have begun; None: since the epoch was admitted.

        Raises:
            ProtocolError: The acknowledgements are not those of this writer and epoch; nothing was decided.
            DataLossError: A transaction ended before it was decided, or a target no longer has what was committed to it
                earlier; nothing was decided.
            EpochConflictError: Another log owns the names in a target now; nothing was decided.
            FencedError: A newer writer has started.
            DecisionInDoubtError: The store did not answer; a restart finds out.
            CommitPendingError: Decided, not yet committed everywhere; a restart finishes it.
        """
        sinks = {name: sink for name, sink in self.sinks.items() if self.lost is None or name in self.lost.sinks}
        follows = self.numbering.follows(self.view)
        numbering = self.numbering if self.lost is None else CONSECUTIVE  # what was lost is of this epoch alone
        committables = gather(self.writer, sinks, numbering.acknowledged(self.view, epoch), acknowledgements)
        # (Invariant 2) All is acknowledged. Before it is decided, no target may have gone back or dropped its share.
        waited = self._check_kept(epoch)
        old = self.policy.monotonic() - self._began if age is None else age + waited
        self._check_age(epoch, committables, old)
        acknowledged = self.policy.monotonic()
        # Step 6 (decide): one entry for all sinks; from here on the epoch is finished, never written again.
        crash_point(Step.ACKNOWLEDGED)
        fresh = self.lost is None
        if self.lost is not None:
            permit = self._replace(self.lost, committables)
        else:
            permit = self.writer.decide(
                epoch,
                committables,
                sinks=list(self.sinks),
                epoch_input=epoch_input,
                state=state,
                follows=follows,
                subtasks=len(acknowledgements),
                datasets=datasets_of(self.sinks),
                targets=self._targets(),
            )
        decided = self.policy.monotonic()
        # Steps 7 and 8 (commit, complete): only a permit lets `finish` commit (invariant 1).
        if not finish(permit, self.writer, self.sinks, fresh=fresh, heals=self.heals):
            raise EpochVoidedError(
                "its decision was voided (on_lost='replay'), because some of it was lost and none of it was visible; a "
                "restart writes it again",
                pipeline=self.pipeline,
                epoch=epoch,
            )
        took = self.policy.monotonic() - acknowledged
        seconds = took + (acknowledged - self._began if age is None else age)
        written = [written for ack in acknowledgements for written in ack.written]
        self._tell_completed(permit.decision, written, Took(seconds, decided - acknowledged, took))
        # An attempt that Spark gave up may live on and prepare after its epoch's sweep: look now and then.
        due = self._left_behind or self.policy.monotonic() - self._swept >= self.policy.sweep_every
        if sweep_after or due or any(ack.retried for ack in acknowledgements):
            self._sweep_after(epoch)
        for sink in self.sinks.values():
            try:
                answers.ledger(sink).completed(self.writer.scope(sink.name), epoch)
            except Exception as error:  # noqa: BLE001 - the epoch is completed, whatever goes wrong afterwards
                _log.warning(
                    "housekeeping of sink %s after epoch %s failed: %s",
                    sink.name,
                    epoch,
                    error,
                    extra=self._fields(epoch, sink=sink.name),
                )

    def _replace(self, lost: Lost, committables: Sequence[Committable]) -> CommitPermit:
        try:
            check_same_rows(lost, committables)
        except DataLossError:
            self.give_up()
            raise
        permit = self.writer.replace(lost.committables, committables)
        _log.warning(
            "epoch %s: %s lost transactions were written again with the same rows, in %s",
            lost.decision.epoch,
            len(lost.committables),
            ", ".join(sorted(lost.sinks)),
            extra=self._fields(lost.decision.epoch),
        )
        tell(LostRewritten(self.pipeline, lost.decision.epoch, len(lost.committables)))
        self.lost = self._torn = None
        return permit

    def give_up(self) -> None:
        """Give up an epoch that failed: bar its decision, and abort the transactions that its subtasks prepared.

        What is decided is left alone. This coordinator is of no use afterwards; the next start opens a new one.

        Raises:
            FencedError: Another writer took the slot, or the decision is there; nothing was aborted.
            StoreError: No definite answer; nothing was aborted.
        """
        # (Invariant 4) Abort only after the decision has been made impossible.
        self.writer.bar()
        sweep(self.writer, self.sinks.values())
        tell(EpochAbandoned(self.pipeline))

    def _check_age(self, epoch: int, committables: Sequence[Committable], age: float) -> None:
        try:
            check_age(self.pipeline, self.sinks, epoch, committables, age=age)
        except DataLossError as error:
            if not self.writer.still_newest():  # a newer writer has swept them
                raise FencedError("a newer writer of this pipeline has started", pipeline=self.pipeline) from error
            raise

    def _check_kept(self, epoch: int) -> float:
        """Check, once the epoch is prepared, that no target has gone back to an older state since earlier epochs.

        A target that does not answer is asked again until `commit_timeout`, as in a commit. This holds for the first
        epoch, too: the log may have gone back to its beginning, and then a target alone knows of the epochs since.

        Returns:
            How long that took, in seconds.
        """
        began = self.policy.monotonic()
        if self._went_back is not None:
            raise self._went_back
        for attempt in count():
            try:
                errors = sorted(check_kept(self.writer, self.sinks).values(), key=_may_be_answered)
            except EpochConflictError as error:
                if not self.writer.still_newest():  # then a target knows more because of the newer writer
                    raise FencedError("a newer writer of this pipeline has started", pipeline=self.pipeline) from error
                raise
            if not errors:
                break
            left = began + self.policy.commit_timeout - self.policy.monotonic()
            if not _may_be_answered(errors[0]) or not self.policy.commits.pause(attempt, left):
                raise errors[0]
            _log.warning("epoch %s is not decided yet: %s", epoch, errors[0], extra=self._fields(epoch))
        return self.policy.monotonic() - began

    def _fields(self, epoch: int | None, **more: Any) -> dict[str, Any]:
        return {"pipeline": self.pipeline, "epoch": epoch, **more}

    def _own_names(self) -> dict[str, Exception]:
        """Refuse names that are not this log's; after a rewind, make the targets forget whose they were.

        Returns:
            What each sink raised whose target did not answer, or has lost what was committed. It is not swept now: it
            may know more than this log, which then is an outdated copy that calls undecided what is decided; or the
            other way round. One that has lost something gets no commits either.
        """
        if not self.view.rewound:
            return {**check_kept(self.writer, self.sinks, starting=True)}
        unanswered: dict[str, Exception] = {}
        for sink in self.sinks.values():
            try:
                answers.ledger(sink).release(self.writer.scope(sink.name))
            except ExternalError as error:
                unanswered[sink.name] = error
        return unanswered

    def _go_back(self, wanted: Rewound) -> Sequence[Committable]:
        """Put REWIND, and return what was finished before it: nothing that it covers is committed any more.

        Until REWIND is durable, nothing has changed: whoever starts without it goes on as if nobody had asked for it.
        """
        check_can_end(self.view, self.sinks)
        undone = self.view.undone
        covered = undone is None or self.numbering.takes_back(wanted, undone)
        finished = () if covered else self._finish_uncovered(wanted)
        _log.warning(
            "going back on purpose: the next epoch is %s (%s)",
            "any" if wanted.epoch == NONE else wanted.epoch,
            wanted.why,
            extra=self._fields(wanted.epoch),
        )
        self.writer.rewind(with_earlier(wanted, self.view.rewind))
        return finished

    def _finish_uncovered(self, wanted: Rewound) -> Sequence[Committable]:
        """Finish a decision from before the epoch to which the pipeline goes back.

        Whose the names are is settled by the rewind: so they are not claimed here, and if a target knows another log,
        or a newer state of this one, nothing is swept before REWIND.
        """
        with suppress(EpochConflictError):
            self._sweep_now(abandoned=True, skip=self._own_names())
        finished = self._finish_decided((), claims=False)
        if self._torn is not None:
            raise self._torn
        if NONE < self.view.awaited < wanted.epoch:
            raise EpochConflictError(
                f"epoch {self.view.awaited} was decided, and lost before any of it was visible, so it has to be "
                f"written again, and the rewind to epoch {wanted.epoch} would leave it out. Start once without the "
                "rewind, or go back to that epoch or an earlier one",
                pipeline=self.pipeline,
                epoch=wanted.epoch,
            )
        return finished

    def _ask_again(self, unowned: dict[str, Exception]) -> dict[str, Exception]:
        """Ask the targets that did not answer at first: committing a decision may have waited for them."""
        silent = [name for name, error in unowned.items() if isinstance(error, ExternalError) and error.retryable]
        if not silent:
            return unowned
        others = {name: error for name, error in unowned.items() if name not in silent}
        return {**others, **check_kept(self.writer, {name: self.sinks[name] for name in silent}, starting=True)}

    def _sweep_now(
        self, *, busy: bool = False, abandoned: bool = False, skip: Collection[str] = ()
    ) -> Exception | None:
        """Sweep, and return what a sink raised, if one did.

        What a target did not abort now holds locks and readers; the next epoch's end tries again.
        """
        self._swept, self._left_behind = self.policy.monotonic(), True
        try:
            self._last_sweep = sweep(self.writer, self.sinks.values(), busy=busy, abandoned=abandoned, skip=skip)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - a sink's
            return error
        self._left_behind = bool(self._last_sweep.left)
        return None

    def sweep_if_due(self) -> None:
        """Sweep while no epoch is under way, if the last sweep is old or has left something behind."""
        if self._left_behind or self.policy.monotonic() - self._swept >= self.policy.sweep_every:
            self._sweep_after(self.view.completed)

    def _sweep_after(self, epoch: int) -> None:
        """Sweep, and log an error: the epoch is completed, and a later sweep tries again."""
        try:
            error = self._sweep_now(busy=self.numbering.overlapping)
        except StoreError as unanswered:
            error = unanswered
        if self.numbering.overlapping and isinstance(error, TargetWentBackError):
            self._went_back = error  # the next epoch may have been prepared before that
        if error is not None:
            _log.warning(
                "the sweep after epoch %s failed and will be repeated after the next one: %s",
                epoch,
                error,
                extra=self._fields(epoch),
            )

    def _tell_completed(self, decision: Decide, written: Sequence[Written] = (), took: Took | None = None) -> None:
        completed = EpochCompleted(
            pipeline=self.pipeline,
            log=decision.log,
            epoch=decision.epoch,
            input=decision.input,
            committables=[c for c in decision.committables if c.transaction not in self.view.skipped],
            sinks=self.sinks,
            checkpoint=self.numbering.overlapping,
            written=written,
            took=took,
        )
        tell_and_note(completed, self.writer.store)

    def _finish_decided(self, hold: Collection[str], *, claims: bool = True) -> Sequence[Committable]:
        permit = self.view.permit()
        if permit is None:
            return ()
        epoch = permit.decision.epoch
        _log.info("finishing epoch %s, decided by an earlier writer", epoch, extra=self._fields(epoch))
        try:
            if not finish(permit, self.writer, self.sinks, hold=hold, heals=self.heals, claims=claims):
                return ()
        except EpochTornError as torn:
            self._torn, self.lost = torn, Lost(permit.decision, tuple(torn.lost), permit.decision.subtasks)
            _log.warning("%s", torn.message, extra=self._fields(epoch))
            return ()
        self._tell_completed(permit.decision)
        return permit.decision.committables


def _may_be_answered(error: OncewardError) -> bool:
    return error.retryable and not isinstance(error, TargetWentBackError)
