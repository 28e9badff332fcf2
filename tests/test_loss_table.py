"""What becomes of a decided epoch that has lost something, for each policy and all that its targets can show.

After a change that is meant: `pytest tests/test_loss_table.py --update-golden`, and read the difference.
"""

from __future__ import annotations

import logging
import re
from itertools import combinations_with_replacement, product
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pytest

from onceward.core.checkpoint import Coordinator, OnLost
from onceward.core.checkpoint.loss_table import RULES, LossAction, LossFacts, rule_of
from onceward.core.contract.transaction import Observation
from onceward.core.errors import CommitPendingError, DataLossError, EpochTornError, EpochVoidedError
from onceward.core.log import Resolved, read

from .core_fakes import acknowledgement, policy
from .golden_kit import compare
from .losses_kit import ABOUT, Case, committable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from onceward.core.contract.transaction import Committable

    from .sink_kit import TargetSink

GOLDEN = Path(__file__).with_name("loss_table.txt")
LETTERS = {
    "p": Observation.PREPARED,
    "o": Observation.OPEN,
    "b": Observation.BEGUN,
    "c": Observation.COMMITTED,
    "a": Observation.ABORTED,
    "e": Observation.EXPIRED,
    "m": Observation.ABSENT,
    "u": Observation.UNKNOWN,
    "n": Observation.NO_ANSWER,
}
LETTER_OF = {state: letter for letter, state in LETTERS.items()}
REASONS = {
    "cannot be proven": "u",
    "only a pipeline whose sources can be read again": "s",
    "holds no hash": "h",
}
LEGEND = """\
What becomes of an epoch whose targets show these states, at a start or in the run that has just decided it.
Rows are what kafka shows, which expires; columns what table shows, which does not; one letter for each transaction:
p prepared, o open, b begun, c committed, a aborted, e expired, m absent ("missing"), u unknown, n no answer.
A cell is the result, and the states of kafka's and table's transactions afterwards: capitals are written again, or
given up. Results: ok (completed), void (the decision is taken back), heal (the lost part is to be written again), wait
(asked again later), fail (DataLossError; .u not proven, .s no source that can be read again, .h no hash).
"""


class Setting(NamedTuple):
    """One combination of policy, program, and moment."""

    on_lost: OnLost
    heals: bool = True
    hashed: bool = True
    fresh: bool = False
    given_up: bool = False
    """Whether an earlier run gave up one more transaction of kafka's, under on_lost=skip."""

    def __str__(self) -> str:
        heals = f", {'heals' if self.heals else 'cannot heal'}, {'hashed' if self.hashed else 'without hashes'}"
        what = heals if self.on_lost is OnLost.REPLAY else ""
        return (
            f"{self.on_lost}{what}, {'just decided' if self.fresh else 'at a start'}{', after a skip' * self.given_up}"
        )


SETTINGS = [
    *(Setting(on_lost, fresh=fresh) for on_lost in (OnLost.FAIL, OnLost.SKIP) for fresh in (False, True)),
    *(Setting(OnLost.REPLAY, *each) for each in product((True, False), (True, False), (False, True))),
]


def in_turn(calls: Sequence[Callable[[], None]]) -> None:
    """Make all calls, as `side_by_side` does, without threads."""
    errors = []
    for call in calls:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - raised below
            errors.append(error)
    if errors:
        raise errors[0]


class Epoch:
    """An epoch of two sinks whose targets show given states."""

    def __init__(self, setting: Setting, kafka: str, table: str) -> None:
        self.setting, self.case = setting, Case()
        self.states = {"kafka": kafka + "a" * setting.given_up, "table": table}
        self.subtasks = range(max(map(len, self.states.values())))

    def coordinator(self) -> Coordinator:
        how = policy(on_lost=self.setting.on_lost, make_all=in_turn)
        sinks = [self.case.table, self.case.kafka]
        return Coordinator("p", self.case.store, sinks, how, heals=self.setting.heals)

    def prepare(self) -> None:
        """Open the pipeline, and prepare the epoch's transactions."""
        self.writing = self.coordinator()
        self.writing.open()
        self.writing.admit(0, ABOUT)
        named = [(sink, n) for n in self.subtasks for sink, states in self.states.items() if n < len(states)]
        self.named = [committable(self.writing, sink, n, 7) for sink, n in named]
        if not self.setting.hashed:
            self.named = [msgspec.structs.replace(c, handed=msgspec.UNSET) for c in self.named]
        for c in self.named:
            getattr(self.case, c.sink).target.states[c.transaction] = LETTERS[self.states[c.sink][c.subtask]]

    def finish(self) -> Coordinator:
        """Decide the epoch, and finish it in the same run or in the next."""
        if self.setting.fresh:
            own = [[c for c in self.named if c.subtask == n] for n in self.subtasks]
            acks = [acknowledgement(*own[n], subtask=n, sinks=tuple(self.states)) for n in self.subtasks]
            self.writing.commit(0, acks, ABOUT)
            return self.writing
        writer = self.writing.writer
        writer.decide(0, self.named, sinks=list(self.states), epoch_input=ABOUT, subtasks=len(self.subtasks))
        if self.setting.given_up:
            last = next(c for c in reversed(self.named) if c.sink == "kafka")
            writer.resolve(0, last.transaction, action="skip", who="a test", why="it is lost")
        started = self.coordinator()
        started.open()
        return started

    def outcome(self) -> tuple[str, list[str]]:
        """Return what came of the epoch, and the transactions that count as lost."""
        try:
            lost = self.finish().lost
        except EpochTornError as torn:
            return "heal", [c.transaction for c in torn.lost]
        except DataLossError as error:
            return "fail" + "".join(f".{letter}" for text, letter in REASONS.items() if text in error.message), []
        except EpochVoidedError:
            return "void", []
        except CommitPendingError:
            return "wait", []
        if lost is not None:
            return "heal", [c.transaction for c in lost.committables]
        return "ok" if read(self.case.store).completed == 0 else "void", []


def result(setting: Setting, kafka: str, table: str) -> str:
    """Decide an epoch, show these states, and finish it; return what came of it, as a cell."""
    epoch = Epoch(setting, kafka, table)
    epoch.prepare()
    outcome, lost = epoch.outcome()
    view = read(epoch.case.store)
    assert (outcome == "ok") is (view.completed == 0)
    assert (outcome in {"ok", "void"}) is (view.undone is None)
    lost += [entry.transaction for entry in view.entries if isinstance(entry, Resolved)]
    return f"{outcome} {_shown(epoch.case.kafka, epoch.named, lost)}/{_shown(epoch.case.table, epoch.named, lost)}"


def _shown(sink: TargetSink, named: Sequence[Committable], lost: Sequence[str]) -> str:
    letters = ""
    for c in (c for c in named if c.sink == sink.name):
        letter = LETTER_OF[sink.target.state_of(c.transaction)]
        letters += letter.upper() if c.transaction in lost else letter
    return letters


def grid(setting: Setting, rows: Sequence[str], columns: Sequence[str]) -> Iterator[str]:
    cells = [["", *columns]]
    cells += [[row, *(result(setting, row, column) for column in columns)] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    yield f"## {setting}"
    for line in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
    yield ""


def sections() -> Iterator[tuple[Setting, Sequence[str], Sequence[str]]]:
    for setting in SETTINGS:
        yield setting, list("pbcamun"), list("pbcamun")
    for setting in (
        Setting(OnLost.FAIL),
        Setting(OnLost.SKIP),
        Setting(OnLost.REPLAY),
        Setting(OnLost.REPLAY, fresh=True),
    ):
        yield setting, list(LETTERS), [""]
        yield setting, [""], list(LETTERS)
    two = ["".join(pair) for pair in combinations_with_replacement("pcau", 2)]
    for on_lost in OnLost:
        yield Setting(on_lost), two, two
    for on_lost in (OnLost.FAIL, OnLost.REPLAY):
        yield Setting(on_lost, given_up=True), list("pcau"), list("pcau")


def described() -> str:
    logging.disable()
    try:
        return "\n".join([LEGEND, *(line for section in sections() for line in grid(*section))])
    finally:
        logging.disable(logging.NOTSET)


PAGE = Path(__file__).parents[1] / "ARCHITECTURE.md"
CONDITIONS = {
    "skippable": ("may not be skipped", "may be skipped"),
    "waits": ("was completed", ""),
    "proven": ("not proven", "proven not committed"),
    "visible": ("nothing is visible", "some is visible"),
    "late": ("", "would overwrite later rows"),
    "heals": ("cannot be computed again", "can be computed again"),
    "unhashed": ("can be compared", "cannot be compared"),
}
"""What the table in the documentation says of a condition that is false, or true."""


def documented() -> str:
    """Return the table of losses as the documentation has it."""
    lines = ["| `on_lost` | the loss | the rest | result | why |", "|---|---|---|---|---|"]
    for rule in RULES:
        policies = ", ".join(f"`{on_lost}`" for on_lost in rule.on_lost)
        conditions = ", ".join(filter(None, (CONDITIONS[name][value] for name, value in rule.when.items())))
        lines.append(f"| {policies} | {conditions} | {rule.rest} | `{rule.action}` | {rule.why} |")
    return "\n".join(["", *lines, ""])


def test_the_documentation_shows_the_table(request: pytest.FixtureRequest) -> None:
    page = PAGE.read_text()
    before, rest = page.split("<!-- losses -->\n")
    _, after = rest.split("<!-- end of losses -->")
    compare(PAGE, f"{before}<!-- losses -->\n{documented()}\n<!-- end of losses -->{after}", request)


def test_exactly_one_rule_fits_each_loss() -> None:
    for on_lost in OnLost:
        for waits, skippable, proven, visible, late, heals, unhashed in product((False, True), repeat=7):
            late_sinks, unhashed_sinks = ["table"] * late, ["table"] * unhashed
            loss = LossFacts(on_lost, waits, skippable, proven, visible, late_sinks, heals, unhashed_sinks)
            assert [rule for rule in RULES if rule.fits(loss)] == [rule_of(loss)]


def test_each_rule_is_a_sentence_or_two() -> None:
    for rule in RULES:
        assert re.fullmatch(r"[A-Z][^|]+\.", rule.why)
        assert not rule.obstacle or rule.action is LossAction.FAIL


@pytest.mark.parametrize("action", [LossAction.VOID, LossAction.HEAL])
def test_only_what_waits_and_is_proven_not_committed_is_written_again(action: LossAction) -> None:
    """Only on_lost=replay has anything written again, and the whole epoch only if nothing of it is visible."""
    for rule in (rule for rule in RULES if rule.action is action):
        assert rule.on_lost == (OnLost.REPLAY,)
        assert rule.when.items() >= {"waits": True, "proven": True, "visible": action is LossAction.HEAL}.items()


def test_nothing_is_written_again_that_may_have_been_committed() -> None:
    """A target that shows nothing of a transaction proves no loss, also if its commit is what says so."""
    cells = [cell.split() for cell in re.findall(r"heal \S+", GOLDEN.read_text())]
    assert cells
    for _, states in cells:
        assert not set("BCMU") & set(states), states


def test_what_becomes_of_a_loss_is_as_recorded(request: pytest.FixtureRequest) -> None:
    compare(GOLDEN, described(), request)
