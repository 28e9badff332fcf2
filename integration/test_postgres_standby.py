"""PostgreSQL with a standby that is promoted: what synchronous and asynchronous replication keep.

Each case kills the primary for good (SIGKILL), promotes the standby, and starts the pipeline again with the same
settings, which name both servers.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest

from onceward import PostgresSink, SequenceSource
from onceward.core import CheckpointConfig, Pipeline, RestartStrategy
from onceward.core.checkpoint import CommitPolicy, Coordinator, OnLost
from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.contract.transaction import Acknowledgement, CommitStatus
from onceward.core.errors import DataLossError, SinkError, StoreError, TargetWentBackError
from onceward.core.kit.crash_points import Step, hooked
from onceward.core.log import EpochInput, open_store

from .kafka_kit import eventually
from .postgres_kit import running_server, running_standby, words
from .spark_kit import Crash, crash_at
from .standby_kit import QUIET, Pair

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from onceward.core.contract.transaction import Committable

pytestmark = [pytest.mark.postgres, pytest.mark.slow]
ROWS, SUBTASKS = 10, 2


@pytest.fixture
def pair() -> Iterator[Pair]:
    with running_server(**QUIET) as primary, running_standby(primary, **QUIET) as standby, ExitStack() as opened:
        yield Pair(primary, standby, opened)


class Driven:
    """A sink and its coordinator; two subtasks write each epoch."""

    def __init__(self, pair: Pair, how: str, store: str) -> None:
        self.pair, self.store = pair, store
        settings: dict[str, Any] = {"key": ["id"]} if how == "upsert" else {"commit": how}
        self.sink = PostgresSink("words", dsn=pair.dsn, table="words", **settings)

    def open(self, **policy: Any) -> Coordinator:
        store = open_store(self.store, pipeline="orders")
        self.pair.opened.callback(getattr(store, "close", int))
        coordinator = Coordinator("orders", store, [self.sink], CommitPolicy(**{"commit_timeout": 20, **policy}))
        coordinator.open()
        return coordinator

    def prepare(self, coordinator: Coordinator, epoch: int) -> list[Committable]:
        prepared = []
        for subtask in range(SUBTASKS):
            writing = SubtaskEpoch(self.sink, coordinator.context("words", epoch, subtask=subtask))
            writing.write(words((epoch * SUBTASKS + subtask) * ROWS, ROWS))
            found = writing.pre_commit()
            assert found is not None
            prepared.append(found)
        return prepared

    def run(self, coordinator: Coordinator, epoch: int) -> None:
        about = EpochInput(query="q", start=epoch, end=epoch + 1)
        coordinator.admit(epoch, about)
        acks = [
            Acknowledgement(epoch=epoch, subtask=c.subtask, attempt=0, sinks=("words",), committables=(c,))
            for c in self.prepare(coordinator, epoch)
        ]
        coordinator.commit(epoch, acks, about)

    def go_on(self, coordinator: Coordinator, epoch: int, *, rows: bool = True) -> None:
        """Run an epoch after a failover; its first connections may still lead to the old primary."""
        about = EpochInput(query="q", start=epoch, end=epoch + 1)
        coordinator.admit(epoch, about)
        prepared: list[Committable] = []
        while rows and not prepared:
            with suppress(SinkError):
                prepared = self.prepare(coordinator, epoch)
        acks = [
            Acknowledgement(
                epoch=epoch,
                subtask=subtask,
                attempt=0,
                sinks=("words",),
                committables=tuple(c for c in prepared if c.subtask == subtask),
            )
            for subtask in range(SUBTASKS)
        ]
        coordinator.commit(epoch, acks, about, sweep_after=True)


def once(epochs: int) -> list[int]:
    return list(range(epochs * SUBTASKS * ROWS))


@pytest.mark.parametrize(
    ("how", "level"),
    [
        ("prepared", "on"),
        ("staging", "remote_apply"),
        pytest.param("prepared", "remote_apply", marks=pytest.mark.nightly),
        pytest.param("staging", "on", marks=pytest.mark.nightly),
        pytest.param("upsert", "on", marks=pytest.mark.nightly),
    ],
)
def test_with_synchronous_replication_a_decided_epoch_is_committed_on_the_promoted_standby(
    pair: Pair, how: str, level: str
) -> None:
    """The decision log is in the same servers. What nobody decided is rolled back there."""
    pair.replicate(level)
    driven = Driven(pair, how, pair.store)
    coordinator = driven.open()
    driven.run(coordinator, 0)
    with crash_at(Step.DECIDE_AFTER), pytest.raises(Crash):
        driven.run(coordinator, 1)
    pair.fail_over()
    assert pair.left() == ((0, SUBTASKS) if how != "prepared" else (SUBTASKS, 0))
    coordinator = driven.open()
    assert coordinator.view.completed == 1
    assert pair.rows() == once(2)
    driven.prepare(coordinator, 2)  # and its driver dies
    coordinator = driven.open()
    assert pair.left() == (0, 0)
    driven.run(coordinator, 2)
    assert pair.rows() == once(3)


@pytest.mark.parametrize("on_lost", ["fail", "replay"])
@pytest.mark.parametrize("how", ["prepared", pytest.param("staging", marks=pytest.mark.nightly)])
def test_with_asynchronous_replication_a_lost_prepare_is_a_loud_loss_and_can_be_replayed(
    pair: Pair, tmp_path: Path, how: str, on_lost: str
) -> None:
    """The decision log is elsewhere, and names what the standby has never heard of."""
    driven = Driven(pair, how, f"file://{tmp_path}/log")
    coordinator = driven.open()
    driven.run(coordinator, 0)
    pair.catch_up()
    pair.standby.stop()
    with crash_at(Step.DECIDE_AFTER), pytest.raises(Crash):
        driven.run(coordinator, 1)
    pair.fail_over()
    if on_lost == "fail":
        for _ in range(2):
            with pytest.raises(DataLossError) as lost:
                driven.open()
            told = str(lost.value)
            assert all(word in told for word in ("epoch 1", "sink words", f"{SUBTASKS * ROWS} rows", "on_lost")), told
        assert (pair.rows(), pair.left()) == (once(1), (0, 0))
        return
    coordinator = driven.open(on_lost=OnLost.REPLAY)
    driven.run(coordinator, 1)
    assert (pair.rows(), pair.left()) == (once(2), (0, 0))


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("how", ["prepared", pytest.param("staging", marks=pytest.mark.nightly)])
def test_with_asynchronous_replication_a_lost_commit_is_made_again_or_is_a_loud_loss(
    pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str, epochs: int
) -> None:
    """The log calls the epochs completed. The standby has the first one prepared, and has never heard of a second."""
    driven = Driven(pair, how, f"file://{tmp_path}/log")
    coordinator = driven.open()
    driven.run(coordinator, 0)

    def stop_replication(step: Step) -> None:
        if step is Step.COMMIT_BEFORE and pair.standby.running:
            pair.catch_up()
            pair.standby.stop()

    with hooked(stop_replication):
        for epoch in range(1, epochs + 1):
            driven.run(coordinator, epoch)
    pair.fail_over()
    held = pair.left()
    assert sum(held) == SUBTASKS
    if epochs == 1:
        coordinator = driven.open()
        assert caplog.text.count("was committed, and was prepared again") == SUBTASKS
        assert (pair.rows(), pair.left()) == (once(2), (0, 0))
        driven.run(coordinator, 2)
        assert pair.rows() == once(3)
        return
    for _ in range(2):
        with pytest.raises(DataLossError) as lost:
            driven.open()
        told = str(lost.value)
        assert all(word in told for word in ("epoch 2", "sink words", f"{SUBTASKS * ROWS} rows", "standby")), told
        assert (pair.rows(), pair.left()) == (once(1), held)  # an operator may still commit what is there
    coordinator = driven.open(on_lost=OnLost.SKIP)
    driven.run(coordinator, 3)
    assert set(coordinator.view.skipped) == set()  # they are in the audit records now
    assert set(pair.rows()) == set(once(4)) - set(range(SUBTASKS * ROWS, 3 * SUBTASKS * ROWS))


@pytest.mark.parametrize("rows", [True, False], ids=["rows", "no rows"])
@pytest.mark.parametrize("seen", ["prepared", "nothing"])
@pytest.mark.parametrize("how", ["prepared", pytest.param("staging", marks=pytest.mark.nightly)])
def test_a_failover_in_mid_run_loses_no_completed_epoch_silently(
    pair: Pair, tmp_path: Path, how: str, seen: str, rows: bool
) -> None:
    """The same run continues on a standby that lacks the previous epoch, or still has it as prepared."""
    driven = Driven(pair, how, f"file://{tmp_path}/log")
    coordinator = driven.open()
    driven.run(coordinator, 0)
    pair.catch_up()

    def stop_replication(step: Step) -> None:
        if step is Step.COMMIT_BEFORE and pair.standby.running:
            pair.catch_up()
            pair.standby.stop()

    if seen == "nothing":
        pair.standby.stop()
    with hooked(stop_replication):
        driven.run(coordinator, 1)
    pair.fail_over()
    if seen == "prepared":
        with pytest.raises(TargetWentBackError, match="committed again"):
            driven.go_on(coordinator, 2, rows=rows)
        driven.go_on(driven.open(), 2, rows=rows)
        assert pair.rows() == once(3 if rows else 2)
        assert pair.left() == (0, 0)
        return
    for run in (coordinator, None):  # the same run, and the next one
        with pytest.raises(DataLossError, match=r"epoch 1.*standby|standby.*epoch 1"):
            driven.go_on(run or driven.open(), 2, rows=rows)
    assert pair.rows() == once(1)


def test_prepared_transactions_that_others_use_up_fail_checkpoints_before_their_decision_and_lose_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Scenario 71. The engine tries again until there is room, and leaves alone what is not its own."""
    with running_server(max_prepared_transactions="3", **QUIET) as server, psycopg.connect(server.dsn) as other:
        other.autocommit = True
        other.execute("CREATE TABLE words (id bigint, word text)")
        for number in range(2):
            other.execute(f"BEGIN; CREATE TABLE foreign_{number} (); PREPARE TRANSACTION 'batch-{number}'")
        pipeline = Pipeline(
            "orders",
            checkpointing=CheckpointConfig(interval=0.3),
            restart=RestartStrategy.fixed_delay(attempts=100, delay=0.2),
            parallelism=2,
        )
        source = SequenceSource(pa.Table.from_batches([words(0, 2 * ROWS)]), units=2)
        pipeline.source(source, uid="words").sink(PostgresSink("out", dsn=server.dsn, table="words", commit="prepared"))
        pipeline.start()
        eventually(lambda: caplog.text.count("raise max_prepared_transactions") >= 2, "it was said twice")
        assert other.execute("SELECT count(*) FROM words").fetchone() == (0,)
        foreign = "SELECT gid FROM pg_prepared_xacts WHERE gid LIKE 'batch-%' ORDER BY gid"
        assert other.execute(foreign).fetchall() == [("batch-0",), ("batch-1",)]
        other.execute("COMMIT PREPARED 'batch-0'")
        assert pipeline.wait(60)
        ids = other.execute("SELECT id FROM words ORDER BY id").fetchall()
        assert [number for (number,) in ids] == list(range(2 * ROWS))
        assert other.execute("SELECT gid FROM pg_prepared_xacts").fetchall() == [("batch-1",)]


def cancel_wait(pair: Pair) -> None:
    """Cut the wait for the synchronous standby short: PostgreSQL answers with success and a warning."""
    waiting = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    with pair.connect(pair.primary) as admin:
        eventually(lambda: bool(admin.execute(waiting).fetchall()), "a commit waits for the standby")


def test_an_entry_that_is_visible_and_not_replicated_is_not_believed(pair: Pair) -> None:
    pair.replicate("on")
    store = open_store(pair.store, pipeline="orders")
    pair.opened.callback(getattr(store, "close", int))
    assert store.put_if_absent("00000000000000000000", b"START")
    pair.standby.kill()

    for _ in range(2):  # the second finds the entry, and must not believe it either
        with ThreadPoolExecutor(1) as threads:
            put = threads.submit(store.put_if_absent, "00000000000000000001", b"DECIDE")
            cancel_wait(pair)
            with pytest.raises(StoreError, match="canceling wait for synchronous replication"):
                put.result()
    pair.standby.start_again()
    assert not store.put_if_absent("00000000000000000001", b"DECIDE")
    assert store.get("00000000000000000001") == b"DECIDE"
    pair.fail_over()
    again = open_store(pair.store, pipeline="orders")
    pair.opened.callback(getattr(again, "close", int))
    assert again.list_keys() == ["00000000000000000000", "00000000000000000001"]


def test_a_commit_that_is_visible_and_not_replicated_is_asked_for_again(pair: Pair, tmp_path: Path) -> None:
    """COMMIT PREPARED whose wait for the standby was cut short, for example by the role's statement_timeout."""
    pair.replicate("on")
    with pair.connect(pair.primary) as admin:
        admin.execute("ALTER ROLE CURRENT_USER SET statement_timeout = '700ms'")
    driven = Driven(pair, "prepared", str(tmp_path / "log"))
    driven.sink = PostgresSink("words", dsn=pair.dsn, table="words", commit="prepared", answer_within=2.0)
    prepared = driven.prepare(driven.open(), 0)
    pair.standby.kill()
    for _ in range(2):  # the second finds it committed, and must not believe it either
        outcomes = driven.sink.commit_many(prepared)
        assert {outcome.status for outcome in outcomes} == {CommitStatus.RETRY_LATER}, outcomes
    pair.standby.start_again()
    assert all(outcome.settled for outcome in driven.sink.commit_many(prepared))
    pair.fail_over()
    assert pair.rows() == once(1)


def test_a_merge_that_is_visible_and_not_replicated_is_asked_for_again(pair: Pair, tmp_path: Path) -> None:
    pair.replicate("on")
    driven = Driven(pair, "staging", str(tmp_path / "log"))
    staged = driven.prepare(driven.open(), 0)
    pair.standby.kill()
    for _ in range(2):  # the second finds it merged, and must not believe it either
        with ThreadPoolExecutor(1) as threads:
            merged = threads.submit(driven.sink.commit_many, staged)
            cancel_wait(pair)
            assert {outcome.status for outcome in merged.result()} == {CommitStatus.RETRY_LATER}
    pair.standby.start_again()
    assert all(outcome.settled for outcome in driven.sink.commit_many(staged))
    pair.fail_over()
    assert pair.rows() == once(1)
