"""The conformance suite for connectors: subclass ConnectorConformance, and give one fixture.

    from onceward.testing.conformance import ConnectorConformance, ConnectorUnderTest

    class TestMyConnector(ConnectorConformance):
        @pytest.fixture
        def connector_under_test(self, tmp_path):
            return ConnectorUnderTest(
                make=lambda: MyConnector(str(tmp_path)), sink=lambda: MySink("mine", tmp_path), place="rows"
            )

A sink of the system writes and prepares; then the connector, which knows no more than the address, must find, end and
read what the sink has left, as `onceward txn`, `verify`, `doctor` and `explain` do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence  # noqa: TC003 - a dataclass field's type
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # noqa: TC002 - a dataclass field's type
import pytest

from onceward.core.checkpoint.recovery import TransactionStatus
from onceward.core.contract.connector import Connector, connector_of, connectors
from onceward.core.contract.findings import Finding, Health
from onceward.core.contract.names import Scope
from onceward.core.errors import ConfigurationError, ExternalError, OncewardError
from onceward.core.kit.crash_points import Step, hooked
from onceward.core.operations.audit import EpochVerdict, Expected, group_by_epoch, judge_epochs, tally
from onceward.core.operations.log_locations import Log
from onceward.core.operations.resolve import abort_undecided, commit_decided
from onceward.core.operations.survey import survey
from onceward.sinks import TwoPhaseCommitSink  # noqa: TC001 - a dataclass field's type

from .sink_case import SinkCase, SinkUnderTest, not_applicable, numbered

if TYPE_CHECKING:
    from onceward.core.contract.place import Place
    from onceward.core.contract.targets import Target
    from onceward.core.operations.audit import Line
    from onceward.core.operations.survey import FoundTransaction


@dataclass(frozen=True)
class Refused:
    """A setup in which the sink's `validate` refuses to start.

    Attributes:
        sink: Makes the sink that is refused.
        connector: Makes the connector to the same system, by the same user.
        place: Name of the place that the sink writes to; None if the place itself is not the fault.
    """

    sink: Callable[[], TwoPhaseCommitSink[Any]]
    connector: Callable[[], Connector]
    place: str | None = None


@dataclass(frozen=True)
class ConnectorUnderTest:
    """A connector and the functions that the conformance suite needs to test it.

    Attributes:
        make: Makes a connector to the system, with its address and settings and nothing else.
        sink: Makes a sink of the system, always with the same name and target, that writes to `place`.
        place: Name of the place that the sink writes to, as in `--target SYSTEM:PLACE`; None if nothing can be read
            back from the system. Each test has one of its own that is empty.
        rows: Makes rows with these numbers, in columns that the sink takes. Default: `n: int64, text: string`.
        alter: Changes a row in the target that is visible, behind the sink's back.
        refused: Setups that `validate` refuses, by the fault: a place that is missing, a right, a setting.
        unreachable: Makes a connector to an address at which nobody answers.
        secret: A password in the connector's address or settings; nothing may show it.
    """

    make: Callable[[], Connector]
    sink: Callable[[], TwoPhaseCommitSink[Any]]
    place: str | None = None
    rows: Callable[[list[int]], pa.RecordBatch] = numbered
    alter: Callable[[], None] | None = None
    refused: Mapping[str, Refused] = field(default_factory=dict)
    unreachable: Callable[[], Connector] | None = None
    secret: str = ""


class ConnectorConformance:
    """Conformance suite of a connector: subclass it, and override the fixture `connector_under_test`."""

    @pytest.fixture
    def connector_under_test(self) -> ConnectorUnderTest:
        """Return the connector to test; a subclass overrides this fixture."""
        raise NotImplementedError("give the fixture `connector_under_test`, which returns a ConnectorUnderTest")

    @pytest.fixture
    def connector(self, connector_under_test: ConnectorUnderTest) -> Connector:
        """Make a new connector, as a command does."""
        return connector_under_test.make()

    @pytest.fixture
    def case(self, connector_under_test: ConnectorUnderTest) -> SinkCase:
        """Make a pipeline of its own for each test."""
        return _case(connector_under_test)

    @pytest.fixture
    def target(self, connector: Connector) -> Target:
        """Return where transactions are, if they can be found by the address."""
        try:
            return connector.target()
        except ConfigurationError as error:
            not_applicable(f"transactions of {connector.name} cannot be found by its address ({error})")

    @pytest.fixture
    def place(self, connector_under_test: ConnectorUnderTest, connector: Connector) -> Place:
        """Return the place that the sink writes to, if it can be read back."""
        if connector_under_test.place is None:
            not_applicable(f"nothing can be read back from {connector.name}")
        return connector.place(connector_under_test.place)

    # It is found

    def test_it_is_found_by_its_name_and_by_its_sink(
        self, connector_under_test: ConnectorUnderTest, connector: Connector
    ) -> None:
        kind = type(connector)
        assert connectors().get(kind.name) is kind, (
            f"the entry point {kind.name} of the group onceward.connectors does not name {kind.__qualname__}"
        )
        if not kind.sink:
            not_applicable("it has no sink")
        sink = connector_under_test.sink()
        assert isinstance(sink, kind.sink_class()), f"{kind.__qualname__}.sink is not {type(sink).__qualname__}"
        assert connector_of(sink) is kind

    # What its sinks prepare

    def test_what_any_pipeline_has_prepared_is_listed_by_the_address_alone(
        self, connector_under_test: ConnectorUnderTest, case: SinkCase, target: Target
    ) -> None:
        other = _case(connector_under_test, f"{case.pipeline}-eu")
        prepared = {one.transaction for one in (case.prepare(subtask=0), case.prepare(subtask=1), other.prepare())}
        listed = [one for one in survey([], [target]).transactions if one.name in prepared]
        assert {one.name for one in listed} == prepared
        assert len(listed) == len(prepared), "a transaction is listed twice"
        for one in listed:
            assert one.held, f"{one.name} is prepared, and the target says {one.state}"
            assert target.holds(one.committable.kind, one.committable.sink), f"holds() denies {one.committable.kind}"
        mine = survey([], [target], case.pipeline).transactions
        assert {one.committable.pipeline for one in mine} == {case.pipeline}
        other.start()

    def test_only_what_is_there_is_listed(
        self, connector_under_test: ConnectorUnderTest, case: SinkCase, target: Target
    ) -> None:
        assert _of(case, target) == []
        case.finish(0, case.prepare())
        left = case.prepare(1)
        assert [one.name for one in _of(case, connector_under_test.make().target())] == [left.transaction]
        case.start()
        assert _of(case, connector_under_test.make().target()) == []

    def test_what_nobody_decided_is_aborted_by_the_address(self, case: SinkCase, target: Target) -> None:
        committable = case.prepare()
        log = Log(case.pipeline, case.store)
        found = survey([log], [target], case.pipeline).transactions
        assert [(one.name, one.status) for one in found] == [(committable.transaction, TransactionStatus.IN_DOUBT)]
        done = abort_undecided(log, found)
        assert not done.left, [one.why for one in done.left]
        assert _of(case, target) == []

    def test_what_is_decided_is_committed_by_the_address(
        self, connector_under_test: ConnectorUnderTest, connector: Connector, case: SinkCase, target: Target
    ) -> None:
        committables = [case.prepare(subtask=0), case.prepare(0, case.numbers(1), subtask=1)]
        with hooked(_dies), pytest.raises(_Died):
            case.finish(0, *committables)
        log = Log(case.pipeline, case.store)
        found = survey([log], [target], case.pipeline).transactions
        assert {one.name for one in found} == {one.transaction for one in committables}
        assert {one.status for one in found} == {TransactionStatus.DECIDED}
        decision = log.view.undone
        assert decision is not None
        done = commit_decided(log, decision, found)
        assert done is not None
        assert done.committed == len(committables)
        assert log.view.undone is None
        assert _of(case, target) == []
        if connector_under_test.place is not None:
            assert _rows(connector.place(connector_under_test.place)) == done.committed * len(case.numbers())

    def test_the_names_of_its_sinks_are_known_after_a_commit(self, case: SinkCase, target: Target) -> None:
        case.finish(0, case.prepare())
        assert set(target.known(case.pipeline)) in (set(), {case.sink.name})
        assert not set(target.known(f"{case.pipeline}-eu"))

    # What is read back

    def test_each_epoch_that_is_read_back_has_the_hash_that_the_log_says(self, case: SinkCase, place: Place) -> None:
        for epoch in range(3):
            case.finish(epoch, case.prepare(epoch, subtask=0), case.prepare(epoch, case.numbers(epoch + 5), subtask=1))
        lines, foreign = _audited(case, place)
        assert not foreign, f"{foreign} rows are taken for those of nobody"
        assert {line.verdict for line in lines} == {EpochVerdict.PROVEN}, lines
        assert sum(line.found for line in lines) == 3 * 2 * len(case.numbers())

    def test_what_is_prepared_is_not_read_back(self, case: SinkCase, place: Place) -> None:
        case.finish(0, case.prepare())
        case.prepare(1)
        assert _rows(place) == len(case.numbers())
        case.start()

    def test_a_row_that_was_altered_is_noticed(
        self, connector_under_test: ConnectorUnderTest, case: SinkCase, place: Place
    ) -> None:
        if connector_under_test.alter is None:
            not_applicable("no ConnectorUnderTest.alter")
        case.finish(0, case.prepare())
        connector_under_test.alter()
        lines, foreign = _audited(case, place)
        assert foreign or {line.verdict for line in lines} != {EpochVerdict.PROVEN}, lines

    def test_each_row_that_is_read_back_shows_where_it_is(self, case: SinkCase, place: Place) -> None:
        case.finish(0, case.prepare())
        reread = place.reread(case.scope, ())
        for piece in reread.pieces:
            assert len(piece.marks) == len(piece.positions) == piece.rows.num_rows
            assert len(set(piece.positions)) == piece.rows.num_rows, "two rows are said to be at one position"
            assert piece.rows.schema.names == [n for n in reread.schema.names if n in piece.rows.schema.names]

    # What its checks say

    def test_a_system_that_works_fails_no_check(
        self, connector_under_test: ConnectorUnderTest, connector: Connector, case: SinkCase
    ) -> None:
        case.finish(0, case.prepare())
        sink = connector_under_test.sink()
        places = [] if connector_under_test.place is None else [connector_under_test.place]
        assert not _failed(connector.check(places, case.pipeline))
        assert not _failed(type(connector).check_parts([sink], [], case.pipeline))
        assert case.lingering() == []

    def test_its_checks_say_why_validate_refuses(self, connector_under_test: ConnectorUnderTest) -> None:
        if not connector_under_test.refused:
            not_applicable("no ConnectorUnderTest.refused")
        schema, missed = connector_under_test.rows([1]).schema, []
        for fault, setup in connector_under_test.refused.items():
            with pytest.raises(OncewardError):
                setup.sink().validate(schema)
            connector, names = setup.connector(), [] if setup.place is None else [setup.place]
            if not _failed_or_error(lambda: connector.check(names, None)):  # noqa: B023 - called at once
                missed.append(f"{fault}: check() finds nothing, so `onceward doctor` calls it healthy")
            if not _failed_or_error(lambda: type(connector).check_parts([setup.sink()], [], None)):  # noqa: B023
                missed.append(f"{fault}: check_parts() finds nothing, so `onceward explain` calls it healthy")
        assert not missed, "\n".join(missed)

    def test_an_address_at_which_nobody_answers_is_reported_and_raises_nothing_strange(
        self, connector_under_test: ConnectorUnderTest
    ) -> None:
        if connector_under_test.unreachable is None:
            not_applicable("no ConnectorUnderTest.unreachable")
        connector = connector_under_test.unreachable()
        assert _failed_or_error(lambda: connector.check([], None))
        try:
            target = connector.target()
        except ConfigurationError:
            return  # it has none
        except ExternalError:
            return
        with pytest.raises(ExternalError):
            list(target.names([]))

    def test_no_secret_is_shown(
        self, connector_under_test: ConnectorUnderTest, connector: Connector, case: SinkCase
    ) -> None:
        secret = connector_under_test.secret
        if not secret:
            not_applicable("no ConnectorUnderTest.secret")
        committable = case.prepare()
        shown = [repr(connector), *map(str, connector.check([], None)), committable.to_json()]
        shown += map(str, type(connector).check_parts([connector_under_test.sink()], [], None))
        try:
            shown.append(connector.target().title)
        except ConfigurationError as error:
            shown.append(str(error))
        case.start()
        for text in shown:
            assert secret not in text, text.replace(secret, "…")


class _Died(BaseException):
    """A stand-in for the death of a process."""


def _dies(step: Step) -> None:
    if step is Step.COMMIT_BEFORE:
        raise _Died


def _case(connector_under_test: ConnectorUnderTest, pipeline: str | None = None) -> SinkCase:
    sink = connector_under_test.sink
    return SinkCase(SinkUnderTest(make=sink, read=list, rows=connector_under_test.rows), pipeline)


def _of(case: SinkCase, target: Target) -> list[FoundTransaction]:
    """List the target's transactions of the case's pipeline."""
    return list(survey([], [target], case.pipeline).transactions)


def _rows(place: Place) -> int:
    return sum(batch.num_rows for batch in place.batches())


def _audited(case: SinkCase, place: Place) -> tuple[Sequence[Line], int]:
    """Compare a place with the case's log, as `onceward verify` does."""
    view = Log(case.pipeline, case.store).view
    expected = Expected.of(view, case.sink.name)
    columns = sorted({name for written in expected.epochs.values() for name in written.columns})
    assert columns, "the committables have no proof of their rows: give context.committable(proof=…), made by a RowHash"
    reread = place.reread(Scope(case.pipeline, case.sink.name, view.log), columns)
    found = tally(reread)
    return judge_epochs(expected, group_by_epoch(found, reread, expected, expected), reread.unmarked)


def _failed(findings: Any) -> list[Finding]:
    return [finding for finding in findings if finding.health is Health.FAILED]


def _failed_or_error(check: Callable[[], Any]) -> bool:
    """Return whether a check fails, or raises an error that `doctor` reports as a failure."""
    try:
        return bool(_failed(check()))
    except OncewardError:
        return True
