"""The state of a pipeline, from what it has written down: its decision log and the notes beside it.

Nothing is asked of the driver's process: it may be on another machine, hang, or be gone. `assess` is a pure function of
the log, the notes and the clock. The first state of this list that applies counts:

1. unreadable: the log cannot be read, so nothing is known of the pipeline.
2. ended: a savepoint has moved the log elsewhere.
3. waiting: a decision has waited for its commit for longer than a commit takes. A target may end its transactions.
4. ended: the newest note is of an end, or of a driver that has ended without an error, or was stopped.
5. failed: nobody can write to the log, because its disk is full or read-only.
6. failed: the newest note is of a driver that has failed, and that `onceward run` does not start again.
7. restarting: the pipeline has started several times within a few minutes, without completing epochs in between, or
   `onceward run` waits to start it again.
8. failed: an operator's command has written the newest START, and no run has started since.
9. failed: the newest note is of a failure.
10. silent: a source does not answer, no epoch was completed for many times the usual pace, or the newest entry is from
   the future, so that its age is not known.
11. running.

A START in the log that no tool wrote is a run. Notes of its end count only if they are of that run: they are newer than
its START, and if they name writers, its writer is one of them.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from ..contract.connector import noted_address
from ..contract.names import is_sink_name
from ..contract.transaction import Observation, rows_by_sink
from ..errors import OncewardError, named_text_of, text_of
from ..kit.times import duration
from ..log import DirectoryStore, LogView, Start
from ..log.note_kinds import (
    CheckpointRecord,
    EndNote,
    EpochNote,
    ErrorNote,
    FailureNote,
    LifeNote,
    SourceNote,
    StartNote,
    TaskNote,
)
from ..log.notes import notes_beside
from ..run.source_watch import MOST_SECONDS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ..log import Decide, Entry, LogStore
    from ..log.note_kinds import Note
    from .log_locations import Log
    from .survey import FoundTransaction

N = TypeVar("N")
WAITING_SECONDS: Final = 30.0
"""Age from which a decision without COMPLETED counts as waiting; a commit takes less."""
RESTARTS: Final = 3
"""Number of starts within RESTART_SECONDS from which a pipeline counts as restarting."""
RESTART_SECONDS: Final = 600.0
SILENT_EPOCHS: Final = 10
"""Multiple of its usual pace that a pipeline may be without an epoch, and at least SILENT_SECONDS."""
SILENT_SECONDS: Final = 60.0
UNKNOWN_PACE_SECONDS: Final = 600.0
"""Seconds that it may be without an epoch if its pace is not known."""
OVERDUE_SECONDS: Final = 60.0
"""Seconds that a driver may be started again later than announced."""
AHEAD_SECONDS: Final = 60.0
"""Seconds that a time may be in the future: clocks of two machines differ a little. A later one gives no age."""
LEAST_BYTES: Final = 1 << 16
"""Free bytes of the log's disk, below which it counts as full: an entry of many transactions has more."""
NOTES: Final = 200
"""Number of notes of each kind that are looked at."""
_SHORT: Final = 0.1
"""Seconds, below which a pace is shown with two digits."""
_PROGRESS: Final = (EpochNote, CheckpointRecord)
"""Notes of epochs and checkpoints, with which a pipeline advances."""
_ASIDE: Final = (TaskNote, SourceNote)
"""Notes of faults that may pass: they end no run and begin none."""


class PipelineState(StrEnum):
    """State of a pipeline; the order is that of need."""

    UNREADABLE = "unreadable"
    WAITING = "waiting"
    """A decision waits for its commit."""
    RESTARTING = "restarting"
    FAILED = "failed"
    SILENT = "silent"
    RUNNING = "running"
    ENDED = "ended"

    @property
    def is_well(self) -> bool:
        """Whether nobody needs to do anything."""
        return self in (PipelineState.RUNNING, PipelineState.ENDED)

    @property
    def need(self) -> int:
        """Rank of the state by how much it needs an operator: 0 is the most urgent."""
        return list(PipelineState).index(self)


class Deadline(NamedTuple):
    """When targets end the transactions of a decision by themselves, as far as that is known.

    A target has been asked and has answered, was asked and is silent, or was not asked. Of the last two, the pipeline's
    own note says after how many seconds they end a transaction.
    """

    seconds: int | None = None
    """Seconds until the first one ends; None if none ends, or if that is not known of any."""
    at_most: bool = False
    """True if less time may be left: it was counted from the decision, by the clocks of the driver and this machine."""
    silent: tuple[str, ...] = ()
    """Sinks whose targets were asked and have not answered."""
    unasked: tuple[str, ...] = ()
    """Sinks whose targets were not asked."""
    unknown: tuple[str, ...] = ()
    """Sinks of both kinds for which it is not known whether their targets end transactions."""

    @property
    def unheard(self) -> str:
        """Which targets have not said when rows expire, in words; empty if all have."""
        parts = [f"the target of sink {', '.join(self.silent)} does not answer"] * bool(self.silent)
        parts += [f"the target of sink {', '.join(self.unasked)} was not asked"] * bool(self.unasked)
        parts += [f"when rows for {', '.join(self.unknown)} expire is not known"] * bool(self.unknown)
        return "; ".join(parts)


class Answers(NamedTuple):
    """What targets have answered about the decision that waits."""

    expires_in: int | None = None
    """Seconds until a target ends the first of the transactions that wait."""
    expiring: int | None = None
    """Rows of those that a target will end; None: all."""
    lost: Mapping[str, int] | None = None
    """Number of waiting transactions that a target has ended without a commit, by sink; None if no target was asked."""
    answered: Collection[str] = ()
    """Sinks whose targets have answered; of the others, the pipeline's own notes say when transactions end."""
    silent: Collection[str] = ()
    """Sinks whose targets were asked and did not answer."""
    committed: Collection[str] = ()
    """Names of transactions that are committed already."""


class NotedSystem(msgspec.Struct, frozen=True):
    """Where a sink writes or a source reads, by the newest decision or a note beside the log; it holds no secret.

    Whatever the connector's patterns do not match is left out, because others may have written it.
    """

    name: str
    """Name of the sink, or of the source as messages call it."""
    system: str = ""
    """Name of the connector, such as `kafka`, or if nobody noted it, the kind of the transactions that wait; empty if
    neither is known, or `--at` cannot name such a target."""
    address: str = ""
    """Address of the system, as `--at SYSTEM=ADDRESS` takes it."""
    settings: tuple[str, ...] = ()
    """Settings of the connection, `NAME=VALUE` each, as `--set SYSTEM:NAME=VALUE` takes them."""
    missing: str = ""
    """Secret that a person must add to reach it, in words; empty if there is none."""
    place: str = ""
    """Place that the sink writes to there, as `--place SYSTEM:PLACE` takes it."""
    decided: bool = False
    """True if the newest decision names the address. A note is no proof of it: a command that used the address could
    send a password to whoever wrote the note."""
    noted: bool = False
    """True if it is known that `--at` cannot name the target; then there is no address."""
    is_source: bool = False


class PipelineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """State of a pipeline, as `--json` shows it; times are UTC, and null is what is not known."""

    pipeline: str
    """Name of the pipeline; empty if the log cannot be read."""
    store: str
    state: PipelineState
    what: str
    """Explanation of the state, in one sentence."""
    advice: str = ""
    """Action to take; empty if nothing needs to be done."""
    since: str | None = None
    """Time from which the state counts: of the decision, the failure, the newest start or the last epoch."""
    epoch: int | None = None
    """Newest decided epoch."""
    rows: int | None = None
    """Rows of the decision that wait: of several sinks, those of the sink that has most."""
    expires_in: int | None = None
    """Seconds until a target ends the first of the transactions that wait; null if none does, or if it is not known."""
    at_most: bool = False
    """True if less time may be left than `expires_in`: the target was not asked or did not answer, so it was counted
    from the decision, by the clocks of the driver and of this machine and the timeout that the pipeline noted."""
    unasked: tuple[str, ...] = ()
    """Sinks of the waiting decision whose targets were not asked."""
    silent: tuple[str, ...] = ()
    """Sinks of the waiting decision whose targets were asked and did not answer."""
    lost: int | None = None
    """Number of waiting transactions that a target has ended without a commit; null if no target was asked."""
    pace: float | None = None
    """Usual seconds between two epochs."""
    silent_epochs: int | None = None
    """Number of epochs of the usual pace that have not come."""
    restarts: int | None = None
    """Number of starts in the last ten minutes."""
    error: str | None = None
    """The last failure that was noted since an epoch was completed."""
    error_at: str | None = None
    """Time of that failure; null if its note is gone."""
    source: str | None = None
    """The source that has not answered for longest; null if all answer, or if nobody has noted it."""
    exit_code: int | None = None
    """The driver's last exit code since an epoch was completed; only `onceward run` notes it."""
    systems: tuple[NotedSystem, ...] = ()
    """Systems that the sinks of the waiting decision write to, or else all sinks; or the system of the source that does
    not answer."""
    command: str = ""
    """The command that does what is advised, or shows more; empty if nothing needs to be done, and in Python. Several
    are separated by semicolons: one command asks one system of a kind."""
    fill_in: str = ""
    """Text that says what must be filled in or added before the command can run; empty if it can run as it is."""
    docs: str = ""
    """Address of the page about this state: what it means, how much time is left, what to do; empty in Python."""

    @property
    def needs_somebody(self) -> bool:
        """Whether there is something to do."""
        return not self.state.is_well and bool(self.advice)

    @property
    def urgency(self) -> tuple[Any, ...]:
        """Sorts the pipeline that needs somebody most first: by the time that is left, if some is running out."""
        left = float("inf") if self.expires_in is None else self.expires_in
        return self.state.need, left, self.pipeline, self.store


def pipeline_status(
    log: Log,
    transactions: Sequence[FoundTransaction] = (),
    *,
    now: datetime | None = None,
) -> PipelineStatus:
    """Return the state of a pipeline.

    Args:
        log: The pipeline's decision log.
        transactions: Transactions that a survey of the targets has found; they say when those of the waiting decision
            expire.
        now: The time; by default that of this machine.
    """
    where = log.store.describe()
    try:
        view = log.view
    except Exception as error:  # noqa: BLE001 - whatever others wrote into the log, it hides no other pipeline
        return unreadable(log.pipeline, where, _text_of(error))
    noted = notes_beside(log.store, NOTES)
    answers = _answers(view.undone, transactions) if view.undone is not None else Answers()
    at = now or datetime.now(UTC)
    return judged(log.pipeline, where, view, noted, at, answers=answers, obstacle=obstacle_of(log.store))


def _answers(decision: Decide, transactions: Sequence[FoundTransaction]) -> Answers:
    """Return what the targets have answered of the transactions that a decision names."""
    named = {(c.pipeline, c.sink, c.transaction) for c in decision.committables}
    own = [one for one in transactions if (one.committable.pipeline, one.committable.sink, one.name) in named]
    asked = [one for one in own if one.target is not None]
    silent = {one.committable.sink for one in asked if one.state is Observation.NO_ANSWER}
    return Answers(
        expires_in=min((one.expires_in for one in own if one.expires_in is not None), default=None),
        expiring=sum(one.committable.rows for one in own if one.expires_in is not None),
        lost=Counter(one.committable.sink for one in own if one.lost) if asked else None,
        answered={one.committable.sink for one in asked} - silent,
        silent=silent,
        committed={one.name for one in asked if one.state is Observation.COMMITTED},
    )


def obstacle_of(store: LogStore) -> str:
    """Return what keeps everybody from writing to a log in a folder; empty if nothing is known to.

    A run that cannot write its log cannot write notes there either, so it is not heard that it fails.
    """
    if not isinstance(store, DirectoryStore):
        return ""
    try:
        there = os.statvfs(store.path)
    except OSError:
        return ""  # whoever reads the log says what is wrong
    if there.f_flag & os.ST_RDONLY:
        return "the file system of its decision log is read-only"
    if there.f_blocks and there.f_bavail * there.f_frsize < LEAST_BYTES:
        return f"the disk of its decision log is full ({there.f_bavail * there.f_frsize} bytes are left)"
    if there.f_files and not there.f_favail:
        return "the file system of its decision log has no room for another file (no inodes are left)"
    return ""


def commit_deadline(log: Log, decision: Decide, transactions: Sequence[FoundTransaction]) -> Deadline:
    """Return when targets end what is left of a decision, by their answers or else by the pipeline's notes."""
    noted = notes_beside(log.store, NOTES)
    facts = _Facts(LogView(), noted, datetime.now(UTC), None, None)
    return _deadline(facts, decision, _answers(decision, transactions))


def judged(
    pipeline: str, where: str, view: LogView, noted: Sequence[Note], now: datetime, **more: Any
) -> PipelineStatus:
    """Return what `assess` does, and the status of an unreadable pipeline if it cannot make sense of its input."""
    try:
        return assess(pipeline, where, view, noted, now, **more)
    except Exception as error:  # noqa: BLE001 - whatever others wrote beside the log, it hides no other pipeline
        return unreadable(pipeline, where, _text_of(error))


def _text_of(error: Exception) -> str:
    return text_of(error) if isinstance(error, OncewardError) else named_text_of(error)


def unreadable(pipeline: str, store: str, error: str) -> PipelineStatus:
    """Return the status of a pipeline whose log cannot be read."""
    return PipelineStatus(
        pipeline=pipeline,
        store=store,
        state=PipelineState.UNREADABLE,
        what=error,
        advice="bring back the store, or restore the log from a copy; never delete an entry",
        error=error,
    )


def assess(
    pipeline: str,
    store: str,
    view: LogView,
    noted: Sequence[Note],
    now: datetime,
    *,
    answers: Answers = Answers(),  # noqa: B008 - it cannot be changed
    obstacle: str = "",
) -> PipelineStatus:
    """Return the state that a log and its notes show at a time; see the order above.

    Args:
        pipeline: Name of the pipeline.
        store: Description of the log's store.
        view: Content of the log.
        noted: Notes beside the log, oldest first.
        now: Time for which the state is returned.
        answers: Answers of the targets about the decision that waits.
        obstacle: Reason why nobody can write to the log, as `obstacle_of` returns it; empty if there is none.
    """
    ends = [one.at for one in noted if isinstance(one, _PROGRESS)]
    ends += [done.at for _, done in view.decisions if done is not None]
    past = [at for at in ends if not _is_ahead(at, now)]
    facts = _Facts(view, noted, now, max(past, default=None), _pace(noted), obstacle)
    status = _moved(facts) or _waiting(facts, answers) or _ended(facts) or _blocked(facts) or _given_up(facts)
    status = status or _restarting(facts) or _by_hand(facts) or _failed(facts)
    status = status or _unanswered(facts) or _unclear(facts) or _silent(facts) or _running(facts)
    error = status.error or facts.error()
    return msgspec.structs.replace(
        status,
        pipeline=pipeline,
        store=store,
        epoch=view.decided if view.decided >= 0 else None,
        pace=facts.pace,
        error=error,
        error_at=facts.time_of(error),
        exit_code=status.exit_code if status.exit_code is not None else facts.exit_code(),
        systems=() if status.state.is_well else status.systems or _targets(facts),
    )


@dataclass(frozen=True)
class _Facts:
    view: LogView
    noted: Sequence[Note]
    now: datetime
    last: str | None
    """Time at which the newest epoch was completed; None if that is not known."""
    pace: float | None
    obstacle: str = ""

    @cached_property
    def run(self) -> Entry | None:
        """The newest entry of a run, and not of an operator's command."""
        tools = {one.writer_id for one in self.view.entries if isinstance(one, Start) and one.tool}
        return next((one for one in reversed(self.view.entries) if one.writer_id not in tools), None)

    @cached_property
    def newest(self) -> Note | None:
        """The newest note that says how the newest run goes; None if none is of that run.

        A run notes nothing before it has started, and another run's end may be noted later than this one's start.
        """
        own = (one for one in reversed(self.noted) if not (isinstance(one, _ASIDE) or _is_by_hand(one)))
        newest = next(own, None)
        if newest is None or self.run is None or _is_ahead(self.run.at, self.now):
            return newest
        writers = newest.writers if isinstance(newest, LifeNote) else []
        is_other = writers and self.run.writer_id not in writers
        return None if is_other or newest.at < self.run.at else newest

    @property
    def ended_life(self) -> LifeNote | None:
        """The note of the end of a driver's process, if it is the newest one."""
        return self.newest if isinstance(self.newest, LifeNote) else None

    @property
    def start(self) -> StartNote:
        """The newest note of a start; an empty one if there is none."""
        return next((one for one in reversed(self.noted) if isinstance(one, StartNote)), StartNote())

    def error(self, since: str | None = None) -> str | None:
        """Return the last failure since a time, by default since an epoch was completed."""
        failure = self._last(FailureNote, since)
        return failure.error if failure is not None else None

    def time_of(self, error: str | None) -> str | None:
        """Return when the newest note of this error was left; None if there is none."""
        return next((one.at for one in reversed(self.noted) if error and error == _error_of(one)), None)

    def exit_code(self, since: str | None = None) -> int | None:
        """Return the driver's last exit code since a time, by default since an epoch was completed."""
        life = self._last(LifeNote, since)
        return life.code if life is not None else None

    @property
    def failed_lives(self) -> int:
        """How many drivers in a row have failed since an epoch was completed."""
        return sum(isinstance(one, LifeNote) and one.at >= (self.last or "") for one in self.noted)

    def why(self, since: str | None = None) -> str:
        """Return how the last run failed, as the end of a sentence; empty if nobody noted it."""
        code, error = self.exit_code(since), self.error(since)
        return "".join(
            [f"; the last exit code: {code}"] * (code is not None) + [f"; the last failure: {error}"] * bool(error)
        )

    def _last(self, kind: type[N], since: str | None) -> N | None:
        since = since or self.last or ""
        return next((one for one in reversed(self.noted) if isinstance(one, kind) and one.at >= since), None)

    def age(self, at: str | None) -> float | None:
        """Return how many seconds ago a time was; None if it is missing, unreadable or in the future."""
        return None if _is_ahead(at, self.now) else _seconds(at, self.now)


def _is_by_hand(note: Note) -> bool:
    """Return whether an operator's command has left the note."""
    return isinstance(note, EpochNote) and note.tool is not msgspec.UNSET


def _error_of(note: Note) -> str:
    return note.error if isinstance(note, ErrorNote) else note.why if isinstance(note, SourceNote) else ""


def _status(state: PipelineState, what: str, **known: Any) -> PipelineStatus:
    return PipelineStatus(pipeline="", store="", state=state, what=what, **known)


def _moved(facts: _Facts) -> PipelineStatus | None:
    if not facts.view.moved:
        return None
    return _status(PipelineState.ENDED, f"a savepoint has moved the pipeline to {facts.view.moved}")


def _waiting(facts: _Facts, answers: Answers) -> PipelineStatus | None:
    decision, lost = facts.view.undone, answers.lost
    age = facts.age(decision.at) if decision is not None else None
    if decision is None:
        return None
    newest = facts.newest
    is_over = isinstance(newest, FailureNote | LifeNote) and newest.at >= decision.at
    if age is not None and age < WAITING_SECONDS and not lost and not is_over:
        return None
    until = _deadline(facts, decision, answers)
    done = facts.view.skipped | set(answers.committed)
    left = [one for one in decision.committables if one.transaction not in done]
    rows = rows_by_sink(left, {one.sink for one in left})
    waits = f" for {duration(age)}" if age is not None else ""
    what = f"epoch {decision.epoch} is decided and has waited{waits} for its commit: {_shown_rows(rows)}"
    what += _until(until, answers, rows)
    if age is None:
        what += "; the clock of its driver, or of this machine, is wrong"
    error = facts.error(decision.at)
    advice = "start the pipeline again, or commit it now"
    if error or facts.obstacle:
        what += "".join([f"; {facts.obstacle}"] * bool(facts.obstacle) + [f"; the last failure: {error}"] * bool(error))
        advice = f"correct what has failed; then {advice}"
    if lost:
        parts = ", ".join(f"{count} of sink {sink}" for sink, count in sorted(lost.items()))
        what += f"; transactions that a target has ended without a commit: {parts}"
        advice = "start the pipeline again: with on_lost='replay' it writes the lost rows again if that is safe"
    return _status(
        PipelineState.WAITING,
        what,
        advice=advice,
        since=decision.at,
        rows=max(rows.values(), default=0),
        expires_in=until.seconds,
        at_most=until.at_most,
        unasked=until.unasked,
        silent=until.silent,
        lost=sum(lost.values()) if lost is not None else None,
    )


def _shown_rows(rows: Mapping[str, int]) -> str:
    """Return how many rows wait: the same rows may go to several sinks, so they are not added up."""
    if len(rows) == 1:
        return f"{sum(rows.values())} rows"
    return ", ".join(f"{count} rows for {sink}" for sink, count in sorted(rows.items())) or "0 rows"


def _until(until: Deadline, answers: Answers, rows: Mapping[str, int]) -> str:
    """Return when rows expire, as the rest of a sentence, and if any target was asked, which ones have not said it."""
    if until.seconds is None:
        text = ""
    elif until.at_most:
        when = f"expire in at most {duration(until.seconds)}" if until.seconds else "may have expired"
        text = f", some of which {when}"
    else:
        expiring, all_ = answers.expiring, sum(rows.values())
        some = "" if expiring is None or expiring >= all_ else f"{expiring} of " if len(rows) == 1 else "some of "
        text = f", {some}which expire in {duration(until.seconds)}"
    is_asked = answers.answered or answers.silent
    return text + (f"; {until.unheard}" if until.unheard and is_asked else "")


def _targets(facts: _Facts) -> tuple[NotedSystem, ...]:
    known = facts.start.targets
    undone, newest = facts.view.undone, facts.view.newest
    decided = newest.targets if newest is not None else {}
    if undone is not None:
        kinds = {one.sink: one.kind for one in undone.committables if one.transaction not in facts.view.skipped}
    else:
        kinds = dict.fromkeys([*filter(is_sink_name, known), *(newest.sinks if newest is not None else ())], "")
    return tuple(
        _noted(sink, kind, decided.get(sink, known.get(sink)), decided=sink in decided)
        for sink, kind in sorted(kinds.items())
    )


def _noted(name: str, kind: str, noted: object, *, decided: bool = False, is_source: bool = False) -> NotedSystem:
    """Return a system as the decision or a note names it; whatever is not as a connector writes it is unknown."""
    system, known = noted_address(noted)
    return NotedSystem(
        name,
        system or kind,
        **known._asdict(),
        decided=decided and bool(known.address),
        noted=noted == {},
        is_source=is_source,
    )


def _deadline(facts: _Facts, decision: Decide, answers: Answers) -> Deadline:
    """Return when targets end the decision's transactions: the earliest time that an answer or a note names.

    A transaction began before its decision, so its time is over a little sooner than by the note.
    """
    expires_in, silent = answers.expires_in, answers.silent
    age = facts.age(decision.at)
    start = facts.start
    never = start.targets.keys() - start.timeouts
    sinks = {one.sink for one in decision.committables}
    open_ = sorted(sinks - set(answers.answered))
    timeouts = {sink: start.timeout(sink) for sink in open_}
    known = {sink: seconds for sink, seconds in timeouts.items() if seconds is not None}
    # An entry whose time is ahead of this clock says that no more than the whole timeout is left.
    left = round(max(0.0, min(known.values()) - (age or 0.0))) if known else None
    at_most = left is not None and (expires_in is None or left < expires_in)
    return Deadline(
        left if at_most else expires_in,
        at_most,
        tuple(sink for sink in open_ if sink in silent),
        tuple(sink for sink in open_ if sink not in silent),
        tuple(sink for sink in open_ if sink not in known and sink not in never),
    )


def _restarting(facts: _Facts) -> PipelineStatus | None:
    ages = [(at, facts.age(at)) for at in _starts_in_vain(facts.noted)]
    starts = [(at, age) for at, age in ages if age is not None and age <= RESTART_SECONDS]
    life = facts.ended_life
    pause = life.again if life is not None else None
    waits = pause - (facts.age(life.at) or 0.0) if life is not None and pause is not None else None
    advice = "correct what the driver's log says; each start reads the same rows again"
    if len(starts) >= RESTARTS:
        since = starts[0][0]
        what = f"started {len(starts)} times in {duration(starts[0][1])}{facts.why(since)}"
        what += f"; onceward run starts it again in {duration(max(0.0, waits))}" if waits is not None else ""
    elif waits is not None:
        since, advice = None, ""  # the restart does all that is needed, unless it fails, too
        error, times = facts.error(), facts.failed_lives
        what = f"starting again in {duration(waits)}" if waits > 0 else f"starting again since {duration(-waits)}"
        what += f" after exit code {facts.exit_code()}" + (f" ({times} times in a row)" if times > 1 else " (1st time)")
        what += f"; the last failure: {error}" if error else ""
    else:
        return None
    return _status(
        PipelineState.RESTARTING,
        what,
        advice=advice,
        since=starts[-1][0] if starts else facts.newest.at if facts.newest is not None else None,
        restarts=len(starts),
        error=facts.error(since),
        exit_code=facts.exit_code(since),
    )


def _starts_in_vain(noted: Sequence[Note]) -> list[str]:
    """Return the times of starts that were followed by a failure or by another start, rather than only by epochs.

    A job that ends by itself is started often, and completes an epoch each time. A failure, or the end of a driver's
    process, that follows no start is a start that has failed too early to be noted. Of these, none counts once an epoch
    is completed: whatever failed so has not disturbed the pipeline.
    """
    times: list[str] = []
    in_vain: set[str] = set()
    early: set[str] = set()
    is_open = failed = False  # whether a start was noted since the last failure, and a failure since the last process
    for one in noted:
        if isinstance(one, StartNote):
            times.append(one.at)
            in_vain.add(one.at)
            is_open = True
        elif isinstance(one, _PROGRESS):
            in_vain -= early
            if is_open:
                in_vain.discard(times[-1])
        elif isinstance(one, FailureNote) or (isinstance(one, LifeNote) and one.failed):
            if isinstance(one, FailureNote) or is_open or not failed:
                if not is_open:
                    times.append(one.at)
                    early.add(one.at)
                in_vain.add(times[-1])
            is_open, failed = False, isinstance(one, FailureNote)
        elif isinstance(one, LifeNote):
            is_open = failed = False
    return [at for at in times if at in in_vain]


_BY_HAND: Final = {"txn commit": "committed", "txn abort": "aborted", "repair-log": "repaired"}


def _by_hand(facts: _Facts) -> PipelineStatus | None:
    """Report a pipeline whose log was written last by an operator's command, which has fenced any run before it."""
    entries = facts.view.entries
    start = next((one for one in reversed(entries) if isinstance(one, Start)), None)
    if start is None or not start.tool or (facts.run is not None and facts.run.position > start.position):
        return None
    age = facts.age(entries[-1].at)
    ago = f" {duration(age)} ago" if age is not None else ""
    done = _BY_HAND.get(start.tool, "ended")
    return _status(
        PipelineState.FAILED,
        f"{done} by hand (onceward {start.tool}){ago}; no run since",
        advice="start the pipeline",
        since=entries[-1].at,
    )


def _blocked(facts: _Facts) -> PipelineStatus | None:
    """Report a log that nobody can write: its pipeline can decide nothing, and can note no failure."""
    if not facts.obstacle:
        return None
    return _status(
        PipelineState.FAILED,
        f"{facts.obstacle}, so nothing can be decided{facts.why()}",
        advice="make room, or make it writable; then start the pipeline again, if it has ended",
        since=facts.last,
    )


def _given_up(facts: _Facts) -> PipelineStatus | None:
    """Report a driver that has failed and that nobody starts again."""
    life = facts.ended_life
    if life is None or not life.failed:
        return None
    pause, age = life.again, facts.age(life.at)
    if pause is not None and (age is None or age <= pause + OVERDUE_SECONDS):
        return None
    text = "is not started again" if pause is None else "should have been started again by onceward run, but was not"
    return _status(
        PipelineState.FAILED,
        f"the last run failed, and {text}{facts.why()}",
        advice="correct the cause, and start the pipeline again",
        since=life.at,
    )


def _failed(facts: _Facts) -> PipelineStatus | None:
    newest, error = facts.newest, facts.error()
    if not isinstance(newest, FailureNote):
        return None
    return _status(
        PipelineState.FAILED,
        f"the last run failed: {error}" if error else "the last run failed",
        advice="correct the cause, and start the pipeline again",
        since=newest.at,
    )


def _ended(facts: _Facts) -> PipelineStatus | None:
    newest = facts.newest
    if not isinstance(newest, EndNote) and (not isinstance(newest, LifeNote) or newest.failed):
        return None
    is_stopped = isinstance(newest, LifeNote) and newest.stopped
    how = "was stopped" if is_stopped else "ended without an error"
    return _status(PipelineState.ENDED, f"the last run {how}", since=newest.at)


def _unanswered(facts: _Facts) -> PipelineStatus | None:
    """Report sources that have not answered since an epoch was completed; meanwhile their driver repeats its note."""
    sources: dict[str, SourceNote] = {}
    for one in facts.noted:
        if isinstance(one, (*_PROGRESS, StartNote)):
            sources.clear()
        elif isinstance(one, SourceNote):
            sources[one.source] = one
    waits: list[tuple[float, str, str]] = []
    for source, noted in sources.items():
        age = facts.age(noted.at)
        if not noted.why or age is None or noted.seconds is None:
            continue
        if age <= min(noted.seconds, MOST_SECONDS) + OVERDUE_SECONDS:  # otherwise its driver is gone, too
            waits.append((noted.seconds + age, source, noted.why))
    if not waits:
        return None
    waits.sort(reverse=True)
    since = facts.now - timedelta(seconds=waits[0][0])
    return _status(
        PipelineState.SILENT,
        "; ".join(f"source {source} has not answered for {duration(seconds)}" for seconds, source, _ in waits),
        advice="bring back what the source reads; the pipeline then continues by itself, or when it is started again",
        since=since.isoformat(timespec="milliseconds"),
        error=waits[0][2],
        source=waits[0][1],
        systems=tuple(_noted(name, "", sources[name].system, is_source=True) for _, name, _ in waits),
    )


def _unclear(facts: _Facts) -> PipelineStatus | None:
    """Report a log whose newest entry has no time from which its age can be known."""
    newest = facts.view.entries[-1].at if facts.view.entries else None
    if newest is None or facts.age(newest) is not None:
        return None
    when = _moment(newest)
    ahead = (
        f"is {duration((when - facts.now).total_seconds())} in the future" if when is not None else "is not readable"
    )
    return _status(
        PipelineState.SILENT,
        f"the time of its newest entry {ahead}, so it is not known whether it still writes",
        advice="correct the clock of its driver, or of this machine",
        since=newest,
    )


def _silent(facts: _Facts) -> PipelineStatus | None:
    starts = [one.at for one in facts.noted if isinstance(one, StartNote) and not _is_ahead(one.at, facts.now)]
    entries = [entry.at for entry in facts.view.entries[-1:]]
    since = max([*starts, *entries, *([facts.last] if facts.last else [])], default=None)
    age, pace = facts.age(since), facts.pace
    limit = UNKNOWN_PACE_SECONDS if pace is None else max(SILENT_SECONDS, SILENT_EPOCHS * pace)
    if age is None or age < limit:
        return None
    missing = int(age / pace) if pace else None
    what = f"nothing was written for {duration(age)}"
    what += f", {missing} times its usual pace of {_shown_pace(pace)}" if pace and missing else ""
    return _status(
        PipelineState.SILENT,
        what,
        advice="see whether the driver runs and its source has new rows, and what its targets hold",
        since=since,
        silent_epochs=missing,
    )


def _shown_pace(seconds: float) -> str:
    return duration(seconds) if seconds >= _SHORT else f"{seconds:.2g} s"


def _running(facts: _Facts) -> PipelineStatus:
    age, undone = facts.age(facts.last), facts.view.undone
    what = f"the last epoch was completed {duration(age)} ago" if age is not None else "no epoch is completed yet"
    began = facts.age(facts.run.at) if isinstance(facts.run, Start) else None
    if began is not None and (age is None or began < age):
        what = f"started {duration(began)} ago; {what}"
    if undone is not None and (waits := facts.age(undone.at)) is not None:
        what = f"epoch {undone.epoch} was decided {duration(waits)} ago, and is being committed; {what}"
    return _status(PipelineState.RUNNING, what, since=facts.last)


def _pace(noted: Sequence[Note]) -> float | None:
    """Return the usual seconds between two epochs; None of fewer than three."""
    ends = [one.at for one in noted if isinstance(one, _PROGRESS)][-50:]
    gaps = [_seconds(before, after) for before, after in zip(ends, map(_moment, ends[1:]), strict=False)]
    known = [gap for gap in gaps if gap is not None and gap > 0]
    return round(median(known), 3) if len(known) > 1 else None


def _moment(at: str | None) -> datetime | None:
    try:
        when = datetime.fromisoformat(at or "")
    except ValueError:
        return None
    return when if when.tzinfo is not None else when.replace(tzinfo=UTC)


def _is_ahead(at: str | None, now: datetime) -> bool:
    when = _moment(at)
    return when is not None and (when - now).total_seconds() > AHEAD_SECONDS


def _seconds(began: str | None, ended: datetime | None) -> float | None:
    when = _moment(began)
    return max(0.0, (ended - when).total_seconds()) if when is not None and ended is not None else None
