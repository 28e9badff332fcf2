"""A full disk under the target: a broker stops, PostgreSQL refuses rows or stops, and a start with room finishes.

Kafka's data and PostgreSQL's data and write-ahead log are on one small disk; decision logs are elsewhere.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from onceward import KafkaSink, PostgresSink
from onceward.connectors.database.engines import close_idle
from onceward.core.checkpoint import Admission, CommitPolicy, Coordinator
from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.contract.transaction import Acknowledgement
from onceward.core.errors import CommitPendingError, KafkaError, SinkError
from onceward.core.kit.crash_points import Step, hooked
from onceward.core.log import EpochInput, MemoryStore
from onceward.testing.services import KafkaCluster, KafkaServer, PostgresServer

from .disk_kit import Disk, mounted
from .kafka_kit import eventually, read_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from onceward.core.contract.transaction import TransactionalSink

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
SMALL_FILES = {"log.segment.bytes": "1048576", "log.index.size.max.bytes": "65536"}
SUBTASKS, ROWS = 24, 10
"""So many transactions that what their ends write does not fit into the last pages of files on a full disk."""
WORD = "x" * 1000
SEGMENT, MESSAGE, RECORD = 16 << 20, 1_000_000, 100
EXPIRES = 12.0
"""Timeout of the transactions of the test in which nothing can be written; a flush gives up earlier."""


@pytest.fixture
def disk() -> Iterator[Disk]:
    # Not in pytest's own folders, which only their owner may enter: PostgreSQL runs as another user than root.
    with TemporaryDirectory(prefix="onceward-test-") as folder:
        Path(folder).chmod(0o755)
        with mounted(Path(folder) / "disk", "160m") as small:
            yield small


@pytest.fixture
def broker(disk: Disk) -> Iterator[KafkaServer]:
    yield from running(KafkaServer(disk.folder / "kafka", config=SMALL_FILES))


@pytest.fixture
def full_server(disk: Disk) -> Iterator[PostgresServer]:
    yield from running(PostgresServer(disk.folder / "postgres"))


def running(server: Any) -> Iterator[Any]:
    try:
        server.start_again()
        yield server
    finally:
        close_idle()
        server.delete()


class Pipeline:
    """Epochs of so many transactions, into one sink."""

    def __init__(self, sink: TransactionalSink[Any], column: str) -> None:
        self.name, self.store = f"full-{uuid.uuid4().hex[:8]}", MemoryStore()
        self.sink, self.column = sink, column

    def open(self, commit_timeout: float = 60) -> Coordinator:
        coordinator = Coordinator(self.name, self.store, [self.sink], CommitPolicy(commit_timeout=commit_timeout))
        coordinator.open()
        return coordinator

    def run(self, coordinator: Coordinator, epoch: int) -> None:
        about = EpochInput(query="q", start=epoch, end=epoch + 1)
        if coordinator.admit(epoch, about) is Admission.REPLAY:
            return
        acks = []
        for subtask in range(SUBTASKS):
            writing = SubtaskEpoch(self.sink, coordinator.context("out", epoch, subtask=subtask))
            first = (epoch * SUBTASKS + subtask) * ROWS
            writing.write(pa.record_batch({self.column: [f"{n}:{WORD}" for n in range(first, first + ROWS)]}))
            prepared = writing.pre_commit()
            assert prepared is not None
            acks.append(
                Acknowledgement(epoch=epoch, subtask=subtask, attempt=0, sinks=("out",), committables=(prepared,))
            )
        coordinator.commit(epoch, acks, about)

    def finish(self, *, decided: bool) -> None:
        """A start finishes epoch 1 if it was decided; the next epochs are written."""
        coordinator = self.open()
        assert coordinator.view.completed == (1 if decided else 0)
        for epoch in (1, 2):
            self.run(coordinator, epoch)


def once(epochs: int) -> list[int]:
    return list(range(epochs * SUBTASKS * ROWS))


def at(moment: Step, strike: Callable[[], None]) -> Any:
    """Strike when this step is reached for the first time."""
    left = [moment]

    def hook(step: Step) -> None:
        if step in left:
            left.remove(step)
            strike()

    return hooked(hook)


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("moment", "error"),
    [
        (Step.DECIDE_AFTER, CommitPendingError),
        pytest.param(Step.PRE_COMMIT_BEFORE, KafkaError, marks=pytest.mark.nightly),
        pytest.param(Step.ACKNOWLEDGED, CommitPendingError, marks=pytest.mark.nightly),
    ],
)
def test_a_broker_on_a_full_disk_stops_and_a_start_with_room_loses_and_duplicates_nothing(
    disk: Disk, broker: KafkaServer, moment: Step, error: type[Exception]
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic("rows", 1, 1)])["rows"].result(30)
    timeout = EXPIRES if error is KafkaError else 120
    settings = {"bootstrap_servers": broker.bootstrap_servers, "transaction_timeout": timeout}
    pipeline = Pipeline(KafkaSink("out", topic="rows", **settings), "value")
    coordinator = pipeline.open(commit_timeout=2)
    pipeline.run(coordinator, 0)
    with at(moment, disk.fill), pytest.raises(error):
        pipeline.run(coordinator, 1)
    eventually(lambda: not broker.running, "the broker has stopped")
    disk.make_room()
    broker.start_again()
    pipeline.finish(decided=error is CommitPendingError)
    assert in_topic(broker.bootstrap_servers) == once(3)


@pytest.mark.kafka
def test_a_full_disk_under_one_broker_of_three_stops_that_broker_alone(disk: Disk, tmp_path: Path) -> None:
    cluster = KafkaCluster(tmp_path)
    cluster.brokers[1].config["log.dirs"] = str(disk.folder / "data")
    with cluster:
        topic = cluster.create("rows", 1, replicas=[[1, 2, 3]])
        pipeline = Pipeline(KafkaSink("out", topic=topic, bootstrap_servers=cluster.direct), "value")
        coordinator = pipeline.open()
        pipeline.run(coordinator, 0)
        with at(Step.DECIDE_AFTER, disk.fill):
            pipeline.run(coordinator, 1)
        pipeline.run(coordinator, 2)
        eventually(lambda: not cluster.brokers[1].running, "the broker has stopped")
        assert in_topic(cluster.direct) == once(3)
        disk.make_room()
        cluster.up_again()
        pipeline.run(coordinator, 3)
        assert in_topic(cluster.direct) == once(4)


def in_topic(servers: str) -> list[int]:
    return sorted(int(message.value().partition(b":")[0]) for message in read_all(servers, "rows"))


def fill_write_ahead_log(disk: Disk, server: PostgresServer, left: int) -> None:
    """Fill the disk, and let somebody else write until the last segment that there was room for has `left` bytes."""
    disk.fill()
    emit = "SELECT pg_logical_emit_message(false, 'other', repeat('x', %s), true)"
    with psycopg.connect(server.dsn, autocommit=True) as other, suppress(psycopg.OperationalError):
        (last,) = other.execute("SELECT max(name) FROM pg_ls_waldir() WHERE length(name) = 24").fetchone() or ("",)
        end = (int(last[8:16], 16) << 32) + (int(last[16:], 16) + 1) * SEGMENT
        while True:
            (at_byte,) = other.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone() or (0,)
            room = end - int(at_byte) - left
            if room < RECORD and left:
                return
            other.execute(emit, [max(1, min(MESSAGE, room * 9 // 10 - RECORD))])
    eventually(lambda: not server.running, "the server has stopped")


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("commit", "moment", "left"),
    [
        pytest.param("prepared", Step.PRE_COMMIT_BEFORE, 200, id="while it prepares"),
        pytest.param("prepared", Step.DECIDE_AFTER, 600, id="while it commits"),
        pytest.param("prepared", Step.ACKNOWLEDGED, 0, id="before the decision", marks=pytest.mark.nightly),
        pytest.param("staging", Step.DECIDE_AFTER, 0, id="before the merge", marks=pytest.mark.nightly),
    ],
)
def test_postgres_without_room_for_its_wal_stops_and_a_start_with_room_loses_and_duplicates_nothing(
    disk: Disk, full_server: PostgresServer, commit: str, moment: Step, left: int
) -> None:
    pipeline = into_table(full_server, commit)
    coordinator = pipeline.open(commit_timeout=2)
    pipeline.run(coordinator, 0)
    decided = moment is not Step.PRE_COMMIT_BEFORE
    with (
        at(moment, lambda: fill_write_ahead_log(disk, full_server, left)),
        pytest.raises(CommitPendingError if decided else SinkError),
    ):
        pipeline.run(coordinator, 1)
    eventually(lambda: not full_server.running, "the server has stopped")
    assert "PANIC:  could not write to file" in full_server.log.read_text()
    disk.make_room()
    full_server.start_again()
    if left and decided:
        assert 0 < prepared(full_server) < SUBTASKS
    pipeline.finish(decided=decided)
    assert in_table(full_server) == once(3)
    assert prepared(full_server) == 0


@pytest.mark.postgres
@pytest.mark.parametrize("commit", ["prepared", pytest.param("staging", marks=pytest.mark.nightly)])
def test_postgres_without_room_for_rows_fails_the_epoch_and_goes_on_with_room(
    disk: Disk, full_server: PostgresServer, commit: str
) -> None:
    pipeline = into_table(full_server, commit)
    coordinator = pipeline.open()
    pipeline.run(coordinator, 0)
    with at(Step.WRITE_BEFORE, disk.fill), pytest.raises(SinkError, match="No space left on device"):
        pipeline.run(coordinator, 1)
    assert full_server.running
    disk.make_room()
    pipeline.finish(decided=False)
    assert in_table(full_server) == once(3)
    assert prepared(full_server) == 0


def into_table(server: PostgresServer, commit: str) -> Pipeline:
    with psycopg.connect(server.dsn) as connection:
        connection.execute("CREATE TABLE rows (word text)")
    return Pipeline(PostgresSink("out", dsn=server.dsn, table="rows", commit=commit), "word")


def in_table(server: PostgresServer) -> list[int]:
    with psycopg.connect(server.dsn) as connection:
        return sorted(int(word.partition(":")[0]) for (word,) in connection.execute("SELECT word FROM rows"))


def prepared(server: PostgresServer) -> int:
    with psycopg.connect(server.dsn) as connection:
        return len(connection.execute("SELECT FROM pg_prepared_xacts").fetchall())
