"""One run of a pipeline: its writers, its coordinator, its epochs and what is told of it. All of that ends with it."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from ..checkpoint import Admission, Coordinator
from ..checkpoint.admission import admission, check_same_sinks
from ..checkpoint.numbering import CONSECUTIVE
from ..contract.events import EpochFailed, EpochReplayed, tell
from ..errors import (
    DecisionInDoubtError,
    EpochTornError,
    EpochVoidedError,
    OncewardError,
    StoreError,
    text_of,
)
from ..log import LogWriter, RunWriters
from ..log.notes import note_failure, note_task
from ..log.writer import check_owner
from .handover import LOOK_SECONDS, Predecessor, Successor, run_steps
from .keeper import StoppedError
from .source_watch import SourceWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from ..checkpoint import CommitPolicy
    from ..checkpoint.healing import Lost
    from ..checkpoint.numbering import EpochNumbering
    from ..contract.sink import TwoPhaseCommitSink
    from ..contract.source import Source
    from ..contract.transaction import Acknowledgement, WriteContext
    from ..log import EpochInput, LogStore, WriterToken

_log = logging.getLogger("onceward.coordinator")
ATTEMPTS: Final = 3
"""Number of times that one epoch is written if its decisions are lost again and again; then the run fails."""
_FOUND_NONE: Final = -1
"""Position of the START of a run that has begun without a decision log."""


@dataclass
class RunEpoch:
    """An epoch that was admitted.

    Attributes:
        coordinator: Coordinator of the run.
        number: Number of the epoch.
        input: Input that it is computed from.
        admission: Reason for which it was admitted.
        is_offered: True if its decision was offered, and so may have been made.
    """

    coordinator: Coordinator
    number: int
    input: EpochInput
    admission: Admission
    is_offered: bool = False

    @property
    def lost(self) -> Lost | None:
        """The lost part of its decision, which is written again; None if it is not healed."""
        return self.coordinator.lost

    def context(self, sink: str, *, subtask: int = -1) -> WriteContext:
        """Return the context in which a subtask writes it; subtask and attempt may still be filled in."""
        return self.coordinator.context(sink, self.number, subtask=subtask)

    def commit(self, acknowledgements: Sequence[Acknowledgement], **how: Any) -> None:
        """Decide it and commit it everywhere, as `Coordinator.commit` does; it is COMPLETED when this returns."""
        self.is_offered = True
        self.coordinator.commit(self.number, acknowledgements, self.input, **how)

    @property
    def may_be_decided(self) -> bool:
        """Whether its decision is made, or the store did not say."""
        view = self.coordinator.view
        return self.is_offered and (view.undone is not None or view.decided == self.number)


class PipelineRun:
    """One run of one pipeline.

    Args:
        pipeline: Name of the pipeline.
        sinks: All its sinks.
        policy: Policy of the run.
        find_store: Function that returns the store of the decision log, or None while there is none. It is called until
            it has returned one.
        numbering: Numbering of its epochs.
        heals: True if the driver can compute a decided epoch again.
        sources: Its sources by titles, as far as they can say whether their systems answer.
        progress: Function that returns a value that changes whenever rows come from all sources; by default the number
            of epochs.
        explain: Function that returns the text of an error for notes and events.
        writers: The writers that this run has become so far; None for a run that begins.

    Attributes:
        coordinator: The coordinator of the newest START; None before the first, and after an epoch was given up.
    """

    def __init__(
        self,
        pipeline: str,
        sinks: Sequence[TwoPhaseCommitSink[Any]],
        policy: CommitPolicy,
        find_store: Callable[[], LogStore | None],
        *,
        numbering: EpochNumbering = CONSECUTIVE,
        heals: bool = True,
        sources: Mapping[str, Source] | None = None,
        progress: Callable[[], Any] | None = None,
        explain: Callable[[BaseException], str] = text_of,
        writers: RunWriters | None = None,
    ) -> None:
        self.pipeline, self.sinks, self.policy = pipeline, sinks, policy
        self._find_store = find_store
        self._store: LogStore | None = None
        self._numbering, self._heals = numbering, heals
        self._sources, self._progress, self._explain = sources or {}, progress or (lambda: self._done), explain
        self.coordinator: Coordinator | None = None
        self._writers = writers
        self._watch: SourceWatch | None = None
        self._done = 0
        """Number of epochs that it has ended; each was read from all sources."""
        self._failed = False
        """True if the newest of them failed, which was told."""
        self._ended = False
        """True if its end was told: the thread that sees it may be earlier than the end of the last epoch's block."""
        self._epoch = threading.Lock()
        """Held while an epoch is under way."""
        self._handed_over = False
        self._found: int | None = None
        self.successor: Predecessor | None = None
        """The conversation with a driver that may take the pipeline over."""

    # The log and its writers

    @property
    def store(self) -> LogStore | None:
        """The store of the decision log; None if there is none yet."""
        if self._store is None:
            self._store = self._find_store()
        return self._store

    @property
    def start(self) -> int | None:
        """Position of the newest START that it has put; None before that."""
        return self._writers.start if self._writers is not None else None

    def writer(self, store: LogStore | None = None) -> LogWriter:
        """Return a writer of the log that has not started: it is this run, however often it starts."""
        store, writers = self._begun(store)
        return LogWriter(store, self.pipeline, self.policy, writers)

    def _begun(self, store: LogStore | None) -> tuple[LogStore, RunWriters]:
        self._store = store = store or self.store
        assert store is not None  # noqa: S101 - a driver opens it before
        self._writers = self._writers or RunWriters.of(self.pipeline, store)
        return store, self._writers

    def _made(self, store: LogStore | None) -> Coordinator:
        store, writers = self._begun(store)
        how: dict[str, Any] = {"numbering": self._numbering, "heals": self._heals, "run_writers": writers}
        return Coordinator(self.pipeline, store, self.sinks, self.policy, **how)

    def open(
        self,
        store: LogStore | None = None,
        check: Callable[[], object] | None = None,
        *,
        epoch: tuple[int, EpochInput] | None = None,
        adopt: bool = False,
        rewind: str | None = None,
        **how: Any,
    ) -> Coordinator:
        """Become the newest writer, finish what is decided, and return the coordinator, as `Coordinator.open` does.

        (Rule A) A target that does not answer, or refuses, must not keep what is decided from being committed before it
        expires: so what can be refused is checked before START, but after it if a decision is to be finished first.

        (Rule W) A checkpoint whose epoch the log does not admit is refused before START, which would end a run that
        works.

        Args:
            store: Store of the decision log; None for the one that is known.
            check: Refuses targets and tasks that are not ready.
            epoch: Number and input of the epoch that is written first, if it is known.
            adopt: Accept any first epoch of an empty log.
            rewind: Reason to go back, see `Coordinator.open`.
            how: Further arguments of `Coordinator.open`.
        """
        coordinator = self._made(store)
        view = coordinator.writer.look() if check is not None or epoch is not None else None
        waits = view is not None and view.undone is not None
        if view is not None and epoch is not None and rewind is None and not (waits or view.taken_back):
            check_owner(view, self.pipeline, coordinator.writer.store)
            if admission(view, *epoch, adopt=adopt, numbering=self._numbering) is Admission.REPLAY:
                check_same_sinks(view, coordinator.sinks)
        if check is not None and not waits:
            check()
        if epoch is not None:
            how |= {"first_epoch": epoch[0], "epoch_input": epoch[1], "query": epoch[1].query}
        coordinator.open(rewind=rewind, **how)
        if check is not None and waits:
            check()
        self.coordinator = coordinator
        return coordinator

    def resume(self, token: WriterToken, lost: Collection[str] = (), *, store: LogStore | None = None) -> Coordinator:
        """Go on as the writer of `token`, which another process of this run opened; see `Coordinator.resume`."""
        coordinator = self._made(store)
        coordinator.resume(token, lost)
        self.coordinator = coordinator
        return coordinator

    def take_over(
        self,
        patience: float,
        check: Callable[[], object] = lambda: None,
        *,
        store: LogStore | None = None,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        """Take the pipeline over from the driver that runs it; the START is this run's first one.

        (Rule W) A start that fails has ended no run that works.

        Args:
            patience: Seconds to wait at most until that driver has ended its epoch.
            check: Refuses targets, once more, before START; not called if a decision is to be finished first.
            store: Store of the decision log; None for the one that is known.
            pause: Waits for a number of seconds; if it returns a true value, nothing is taken over.

        Raises:
            FencedError: Yet another driver is taking it over.
            StoreError: The store of the decision log did not answer.
        """
        writer = self.writer(store)

        def put_start() -> None:
            if writer.look().undone is None:
                check()
            writer.start()

        run_steps(Successor(writer.store, patience).take(put_start), pause)

    # Epochs

    @contextmanager
    def turn(self, epoch: int, await_stop: Callable[[], object] | None = None) -> Iterator[None]:
        """Keep sweeps and newer drivers out of the block, in which an epoch is run, and tell why it fails.

        Args:
            epoch: Number of the epoch, for what is told.
            await_stop: Waits until the run is ended, because a newer driver has taken it over; it raises StoppedError.
        """
        with self.telling(epoch), self._epoch:
            if self._handed_over and await_stop is not None:
                await_stop()
            yield

    @contextmanager
    def epoch(self, number: int, epoch_input: EpochInput, *, adopt: bool = False) -> Iterator[RunEpoch]:
        """Admit an epoch that the block writes and commits; on an error, give it up unless it may be decided.

        An epoch that fails undecided is rolled back at once: what its partitions have prepared holds locks and readers.
        One that may be decided is left to the next start.

        Raises:
            EpochConflictError: It is neither new, nor the newest decided one, nor one that has lost something.
        """
        epoch = self.admit(number, epoch_input, adopt=adopt)
        try:
            yield epoch
        except BaseException as error:
            kept = isinstance(error, DecisionInDoubtError) or epoch.may_be_decided
            if not kept and epoch.admission is not Admission.REPLAY:
                self.coordinator = None
                with suppress(OncewardError):
                    epoch.coordinator.give_up()
            raise
        self._done, self._failed = self._done + 1, False

    def admit(self, number: int, epoch_input: EpochInput, *, adopt: bool = False) -> RunEpoch:
        """Admit an epoch, as `epoch` does, of which other processes of the run write a part, and may give it up."""
        coordinator = self.coordinator
        assert coordinator is not None  # noqa: S101 - opened by the driver
        epoch = RunEpoch(coordinator, number, epoch_input, coordinator.admit(number, epoch_input, adopt=adopt))
        if epoch.admission is Admission.REPLAY:
            tell(EpochReplayed(self.pipeline, number))
        return epoch

    def give_up(self) -> None:
        """Give up an epoch that another process of the run has opened; see `Coordinator.give_up`.

        Raises:
            FencedError: It is decided, or a newer writer has started: nothing was aborted.
            StoreError: The store did not answer: nothing was aborted.
        """
        assert self.coordinator is not None  # noqa: S101 - resumed by the driver
        self.coordinator.give_up()

    def repeat(self, epoch: int, attempt: Callable[[], None]) -> None:
        """Write an epoch; again, in whole or in part, if the policy says so and it is proven to be right.

        Each attempt but the first is as one after a restart: START, sweep, and a look at what became of the decision.
        """
        for number in count(1):
            try:
                attempt()
            except (EpochVoidedError, EpochTornError) as error:
                self.coordinator = None
                if number == ATTEMPTS:
                    raise
                _log.warning("epoch %s is written again: %s", epoch, error)
            else:
                return

    # What is told of it

    @contextmanager
    def telling(self, epoch: int | None) -> Iterator[None]:
        """Tell why the block fails, unless it was only stopped."""
        try:
            yield
        except StoppedError:
            raise
        except BaseException as error:
            self.failed(epoch, error)
            raise

    def failed(self, epoch: int | None, error: BaseException, *, again: bool = False) -> None:
        """Tell observers and the notes why an epoch, the start before it, or the run itself has failed.

        Args:
            epoch: Number of the epoch; None if it is not one epoch that failed.
            error: The error that ended it.
            again: True if the driver starts again by itself.
        """
        why = self._explain(error)
        self.tell_failed(epoch, why, again=again)
        self.note_failed(epoch, error, why)

    def tell_failed(self, epoch: int | None, why: str, *, again: bool = False) -> None:
        """Tell observers alone."""
        self._failed = True
        tell(EpochFailed(self.pipeline, epoch, why, again))

    def note_failed(self, epoch: int | None, error: BaseException | None, why: str = "") -> None:
        """Note a failure of which another process of the run tells observers.

        Args:
            epoch: Number of the epoch.
            error: The error, if it is known here. A run that a newer one has fenced leaves the notes to that one.
            why: Text for the note; empty for that of the error.
        """
        note_failure(self.store, epoch, why or self._explain_any(error), error)

    def note_task_failed(self, epoch: int, error: BaseException) -> None:
        """Note the failure of a task, which may run again."""
        note_task(self.store, epoch, self._explain(error), error)

    def _explain_any(self, error: BaseException | None) -> str:
        return self._explain(error) if error is not None else ""

    def ended_with(self, error: BaseException | None) -> None:
        """Tell why the run has ended, if that was outside of its epochs, as a failure of a source is."""
        if error is not None and not self._failed and not self._ended:
            self.failed(None, error)
        self._ended = True

    # Between two epochs

    def sweep(self) -> None:
        """Abort what late attempts have prepared, unless an epoch is under way; its end sweeps if it is time."""
        if not self._epoch.acquire(blocking=False):
            return
        try:
            if self.coordinator is not None:
                self.coordinator.sweep_if_due()
        except Exception as error:  # noqa: BLE001 - the next epoch or start sweeps, and says what is wrong
            _log.warning("the sweep of an idle query failed and will be repeated: %s", error)
        finally:
            self._epoch.release()

    def ask_sources(self) -> None:
        """Tell of sources whose systems do not answer."""
        if self._watch is None:
            self._watch = SourceWatch(
                self.pipeline, self._sources, self._progress, lambda: self.store, self.policy.monotonic
            )
        self._watch.look()

    def asked(self) -> Predecessor | None:
        """Return the conversation with a newer driver if one asks for the pipeline; it is told that this one has heard.

        Raises:
            StoreError: The store did not answer.
        """
        store, start = self.store, self.start
        if store is None:
            self._found = _FOUND_NONE
            return None
        if self.successor is None:
            self.successor = Predecessor(store, self._found if start is None else start)
        self.successor.answer_for(start)
        return self.successor if self.successor.is_asked() else None

    def hand_over(self, is_active: Callable[[], bool], stop: Callable[[], object]) -> None:
        """Hand the pipeline over between two epochs if a newer driver asks for it: then this run is stopped.

        Args:
            is_active: Function that returns True until the run has ended.
            stop: Ends the run.
        """
        successor = None if self._handed_over else self._asked_or_none()
        while successor is not None and not self._epoch.acquire(timeout=LOOK_SECONDS):
            if not is_active():
                return
            successor = self._asked_or_none()  # again: the first epoch puts a START, for which it is asked anew
        if successor is None:
            return
        try:
            if self.start not in {None, successor.start} or not run_steps(successor.hand_over()):
                return
            self._handed_over = True
        finally:
            self._epoch.release()
        _log.info("pipeline %s runs in another driver now: this query ends", self.pipeline)

        def end() -> None:
            try:
                stop()
            finally:
                successor.say_ended()

        # No daemon: a program that waits for the query alone must not end before the other driver has been told.
        threading.Thread(target=end, name="onceward-handover", daemon=False).start()

    def _asked_or_none(self) -> Predecessor | None:
        try:
            return self.asked()
        except StoreError as error:
            _log.debug("cannot look whether another driver asks for the pipeline: %s", error)
            return None

    def say_ended(self) -> None:
        """Tell a driver that asks for the pipeline that this run has ended: nobody need wait for it."""
        if self.successor is not None and not self._handed_over:
            self.successor.say_ended()
