"""Cases of the conformance suite about a target that fails inside of a call, and works again afterwards.

What a sink may say then:

1. An outcome is RETRY_LATER, or the call raises an error that may pass (RetryableSinkError). COMMITTED is right only if
   the rows are there; LOST, FENCED and UNKNOWN are wrong, because nothing is lost: with on_lost='replay' the rows would
   be written twice, and without it the pipeline would stop.
2. A list that may be incomplete is an error, and so is a claim that could not be looked up or recorded.
3. It says so within a bound of time.
4. Afterwards the same call succeeds, with each row there once.

While rows are written, any error fails the attempt, and nothing of it may ever become visible.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import warnings
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pytest

from onceward.core.contract.ledger import Ledger
from onceward.core.contract.names import NOTHING
from onceward.core.contract.sink import Guarantee, TwoPhaseCommitSink
from onceward.core.contract.transaction import AbortStatus, CommitStatus, Observation
from onceward.core.errors import (
    ConfigurationError,
    EpochConflictError,
    OncewardError,
    ProtocolError,
    RetryableSinkError,
    SinkError,
    named_text_of,
)
from onceward.core.log import MemoryStore

from .outages import Outage, Site, failing_io, outages_of, watched_io
from .sink_case import GOOD, SinkCase, not_applicable
from .watch import is_bug, line_of_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from onceward.core.contract.transaction import Committable

MOST_SECONDS: Final = 20.0
SEEN: Final = (Observation.NO_ANSWER, Observation.UNKNOWN)
Answer = tuple[Any, Exception | None]
"""Result of a call: the value that it returned, and the exception that it raised."""


class Failing:
    """What goes wrong in the target while a call runs. By itself, nothing: it finds out what could.

    Attributes:
        sites: Calls that can be made to fail; known after `during`.
        struck: True if anything went wrong.
        syncs: True if what failed would have made rows durable.
    """

    syncs = False

    def __init__(self) -> None:
        self.sites: list[Site] = []
        self.struck = False

    def __str__(self) -> str:
        return "nothing has failed"

    def during(self, call: Callable[[], Any]) -> Answer:
        """Make the call, and fail the test if it does not end in time."""
        with watched_io() as self.sites:
            return _answer_of(call)

    def check_write_error(self, error: Exception | None) -> None:
        """Fail the test for an error that nobody would take for a fault of the target."""
        if error is not None and (is_bug(error) or isinstance(error, ConfigurationError | ProtocolError)):
            self.wrong(f"the sink raised {named_text_of(error)} at {line_of_error(error)}: raise RetryableSinkError")

    def wrong(self, words: str) -> NoReturn:
        """Fail the test."""
        pytest.fail(f"{self}: {words}", pytrace=False)


class FailingSite(Failing):
    """One call to the operating system or to SQLite that fails, or whose answer is lost."""

    def __init__(self, site: Site, *, after: bool) -> None:
        super().__init__()
        self._site, self._after, self.syncs = site, after, site.syncs

    def __str__(self) -> str:
        return f"{self._site} {'took effect, and its answer was lost' if self._after else 'failed'}"

    def during(self, call: Callable[[], Any]) -> Answer:
        with failing_io(self._site, after=self._after) as left:
            answer = _answer_of(call)
        self.struck = not left
        return answer


class FailingTarget(Failing):
    """A target that fails as a whole."""

    def __init__(self, outage: Outage) -> None:
        super().__init__()
        self._outage, self.struck = outage, True

    def __str__(self) -> str:
        return self._outage.words

    def during(self, call: Callable[[], Any]) -> Answer:
        answers: list[Answer] = []
        thread = threading.Thread(target=lambda: answers.append(_answer_of(call)), daemon=True)
        self._outage.begin()
        try:
            thread.start()
            thread.join(MOST_SECONDS)
        finally:
            self._outage.end()
        if not answers:
            self.wrong(f"the call has not returned after {MOST_SECONDS:g} s. Set a timeout on each request")
        return answers[0]


def _answer_of(call: Callable[[], Any]) -> Answer:
    try:
        answer = call()
        return (list(answer) if hasattr(answer, "__next__") else answer), None
    except Exception as error:  # noqa: BLE001 - judged by the case
        return None, error


class TargetCases:
    """Cases of SinkConformance."""

    def test_19_a_target_that_fails_inside_of_begin_fails_the_attempt(self, case: SinkCase) -> None:
        def attempt(failing: Failing, number: int) -> None:
            writing = case.begin()
            with _discarded(writing):
                self._write_phase(failing, lambda: writing.write(case.sink_under_test.rows([number])))

        needs_faults(each_fault(case, attempt), "`begin`")
        self._nothing_is_left(case)

    def test_19_a_target_that_fails_inside_of_write_fails_the_attempt(self, case: SinkCase) -> None:
        def attempt(failing: Failing, number: int) -> None:
            writing = case.write(0, [number])
            with _discarded(writing):
                self._write_phase(failing, lambda: writing.write(case.sink_under_test.rows([number + 1])))

        needs_faults(each_fault(case, attempt), "`write`")
        self._nothing_is_left(case)

    def test_19_a_target_that_fails_inside_of_pre_commit_fails_the_attempt(self, case: SinkCase) -> None:
        prepared: list[tuple[Failing, Committable, int]] = []

        def attempt(failing: Failing, number: int) -> None:
            writing = case.write(0, [number])
            with _discarded(writing):
                committable = self._write_phase(failing, writing.pre_commit)
                if committable is None:
                    return
                if failing.syncs and failing.struck:
                    failing.wrong("pre_commit returned a committable, whose rows a crash may take away: raise an error")
                prepared.append((failing, committable, number))

        needs_faults(each_fault(case, attempt), "`pre_commit`")
        case.sink.ledger().claim(case.scope)
        for failing, committable, number in prepared:
            status = case.commit(committable).status
            if status not in GOOD or not case.visible()[number]:
                failing.wrong(f"pre_commit returned a committable, and its commit answers {str(status)!r}")
        case.assert_visible([number for _, _, number in prepared])
        for left in case.lingering():
            assert case.abort(left).status is not AbortStatus.COMMITTED
        assert case.lingering() == []
        case.assert_visible([number for _, _, number in prepared])

    def test_19_and_20_a_target_that_fails_inside_of_commit_is_asked_again(self, case: SinkCase) -> None:
        numbers: list[int] = []

        def attempt(failing: Failing, number: int) -> None:
            committable = case.prepare(0, [number])
            case.sink.ledger().claim(case.scope)
            numbers.append(number)
            sink = case.make()
            outcomes, error = failing.during(lambda: sink.commit_many([committable]))
            if isinstance(error, SinkError) and case.sink.guarantee is not Guarantee.EXACTLY_ONCE:
                error = RetryableSinkError("a sink that may deliver twice may also end the run")
            status = self._later(failing, "commit", error) or outcomes[0].status
            unsynced = failing.syncs and failing.struck
            if status in GOOD and (unsynced or not case.visible()[number]):
                why = "what makes the rows durable has failed" if unsynced else "the rows are not visible"
                failing.wrong(f"commit answers {str(status)!r}, and {why}: an epoch would be completed without them")
            if status not in {*GOOD, CommitStatus.RETRY_LATER}:
                failing.wrong(
                    f"commit answers {str(status)!r}. The target only failed for a moment: answer RETRY_LATER, or "
                    "raise RetryableSinkError"
                )
            again = case.commit(committable).status
            if again not in GOOD:
                failing.wrong(f"commit answered {str(status)!r}, and {str(again)!r} when the target worked again")

        needs_faults(each_fault(case, attempt), "`commit`")
        case.assert_as_promised(numbers)

    def test_19_and_20_a_target_that_fails_inside_of_abort_is_asked_again(self, case: SinkCase) -> None:
        def attempt(failing: Failing, number: int) -> None:
            committable, sink = case.prepare(0, [number]), case.make()
            outcome, error = failing.during(lambda: sink.abort(committable))
            status = self._later(failing, "abort", error) or outcome.status
            listed = [one.transaction for one in case.lingering()]
            if status is AbortStatus.ABORTED and committable.transaction in listed:
                failing.wrong("abort answers 'aborted', and the transaction still lingers")
            if status not in {AbortStatus.ABORTED, AbortStatus.RETRY_LATER, CommitStatus.RETRY_LATER}:
                failing.wrong(f"abort answers {str(status)!r}: answer RETRY_LATER, or raise RetryableSinkError")
            again = case.abort(committable).status
            if again is AbortStatus.COMMITTED:
                failing.wrong("abort answers 'committed' when the target works again, and nobody has committed")

        needs_faults(each_fault(case, attempt), "`abort`")
        self._nothing_is_left(case)

    def test_19_a_target_that_fails_inside_of_inspect_proves_nothing(self, case: SinkCase) -> None:
        if type(case.sink).inspect_many is TwoPhaseCommitSink.inspect_many:
            not_applicable("the sink does not define inspect_many")
        committable = case.prepare()

        def attempt(failing: Failing, number: int) -> None:  # noqa: ARG001 - signature
            sink = case.make()
            seen, error = failing.during(lambda: sink.inspect_many([committable]))
            if self._later(failing, "inspect_many", error) is None and seen[0] not in {*SEEN, *_PREPARED}:
                failing.wrong(f"inspect_many answers {str(seen[0])!r} for a prepared transaction: answer NO_ANSWER")

        needs_faults(each_fault(case, attempt), "`inspect_many`")
        case.finish(0, committable)
        case.assert_visible(case.numbers())

    def test_19_a_target_that_fails_inside_of_lingering_is_an_error(self, case: SinkCase) -> None:
        prepared = {case.prepare(0, subtask=0).transaction, case.prepare(0, case.numbers(1), subtask=1).transaction}

        def attempt(failing: Failing, number: int) -> None:  # noqa: ARG001 - signature
            sink = case.make()
            listed, error = failing.during(lambda: sink.lingering(case.scope))
            if self._later(failing, "lingering", error) is None and {one.transaction for one in listed} != prepared:
                failing.wrong(
                    f"lingering lists {len(listed)} of {len(prepared)} prepared transactions, as if that were all: "
                    "raise RetryableSinkError"
                )

        needs_faults(each_fault(case, attempt), "`lingering`")
        self._nothing_is_left(case)

    def test_19_a_target_that_fails_inside_of_a_ledger_accepts_no_other_log(self, case: SinkCase) -> None:
        case.finish(0, case.prepare())
        other = SinkCase(case.sink_under_test).scope.log
        foreign, mine = case.scope._replace(log=other), case.scope

        def refused(failing: Failing, number: int) -> None:  # noqa: ARG001 - signature
            ledger = case.make().ledger()
            _, error = failing.during(lambda: ledger.check_claim(foreign, NOTHING))
            if error is None:
                failing.wrong("check_claim accepted another decision log: raise RetryableSinkError")
            self._later(failing, "check_claim", None if isinstance(error, EpochConflictError) else error)

        def known(failing: Failing, number: int) -> None:  # noqa: ARG001 - signature
            ledger, progress = case.make().ledger(), case.coordinator.view.progress
            remembered, error = failing.during(lambda: ledger.check_claim(mine, progress))
            if self._later(failing, "check_claim", error) is None and remembered is not None and not remembered.owned:
                failing.wrong(
                    "check_claim answers that the target does not know the log, which has committed: a start would "
                    "take that for a target that was emptied. Raise RetryableSinkError"
                )

        def claimed(failing: Failing, number: int) -> None:  # noqa: ARG001 - signature
            one = SinkCase(case.sink_under_test)
            ledger = one.make().ledger()
            _, error = failing.during(lambda: ledger.claim(one.scope))
            if self._later(failing, "claim", error) is not None:
                one.make().ledger().claim(one.scope)
            with contextlib.suppress(EpochConflictError):
                SinkCase(one.sink_under_test, one.pipeline, MemoryStore())
                failing.wrong("claim returned, and another decision log is accepted: raise RetryableSinkError")

        def completed(failing: Failing, number: int) -> None:  # noqa: ARG001 - signature
            ledger = case.make().ledger()
            self._later(failing, "completed", failing.during(lambda: ledger.completed(mine, 0))[1])

        claims = type(case.make().ledger()).claim is not Ledger.claim  # or a commit claims the names, as in Kafka
        attempts = (refused, known, *([claimed] if claims else []), completed)
        shown = [each_fault(case, attempt) for attempt in attempts]
        needs_faults(any(shown), "a method of the ledger")
        case.start()
        case.finish(1, case.prepare(1))
        case.assert_visible(case.numbers(0, 1))

    # How

    @staticmethod
    def _write_phase(failing: Failing, call: Callable[[], Any]) -> Any:
        answer, error = failing.during(call)
        failing.check_write_error(error)
        return answer

    @staticmethod
    def _later(failing: Failing, call: str, error: Exception | None) -> CommitStatus | None:
        """Return RETRY_LATER for an error that says so, None if there is none; fail the test for any other one."""
        if error is None:
            return None
        # What fails in one call may last, as a file's sync: its author may have decided that.
        decided = isinstance(error, SinkError) and isinstance(failing, FailingSite)
        if not decided and (not isinstance(error, OncewardError) or not error.retryable):
            failing.wrong(
                f"{call} raised {named_text_of(error)} at {line_of_error(error)}. An exception ends the run: raise "
                f"RetryableSinkError{', or answer RETRY_LATER' if call in {'commit', 'abort'} else ''}"
            )
        return CommitStatus.RETRY_LATER

    @staticmethod
    def _nothing_is_left(case: SinkCase) -> None:
        case.start()
        assert case.lingering() == []
        case.assert_visible([])
        case.finish(0, case.prepare(0, [case.first + 999]))
        case.assert_visible([case.first + 999])


_PREPARED: Final = (Observation.PREPARED, Observation.OPEN)


def each_fault(case: SinkCase, attempt: Callable[[Failing, int], None]) -> bool:
    """Make an attempt with each fault that can be made while it runs; return whether there is one.

    Args:
        case: Case whose sink is called.
        attempt: Makes a call with a fault, and judges it; the second argument is the number of a row that is its own.
    """
    numbers = iter(range(case.first, case.first + 1000, 2))
    attempt(Failing(), next(numbers))  # whatever a process does only once
    probe = Failing()
    attempt(probe, next(numbers))
    ways: list[Failing] = [FailingTarget(outage) for outage in outages_of(case.sink_under_test)]
    for site in probe.sites:
        ways += [FailingSite(site, after=after) for after in (False, True) if site.changes or not after]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # of what was open when it failed
        for failing in ways:
            attempt(failing, next(numbers))
        gc.collect()
    return bool(ways)


def needs_faults(shown: bool, call: str) -> None:
    """Skip the case if nothing could be made to fail."""
    if not shown:
        not_applicable(
            f"no SinkUnderTest.proxy, and no break_target and mend_target: nothing that {call} asks of the target can "
            "be made to fail from here"
        )


@contextlib.contextmanager
def _discarded(writing: Any) -> Iterator[None]:
    try:
        yield
    finally:
        with contextlib.suppress(Exception):
            writing.discard()
