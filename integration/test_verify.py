"""Rows that are removed, duplicated or altered behind onceward's back are found and named, in Kafka and PostgreSQL."""

from __future__ import annotations

import json
import uuid
from datetime import time
from typing import TYPE_CHECKING, Any

import confluent_kafka
import psycopg
import pyarrow as pa
import pymysql
import pytest
from sqlalchemy import create_engine, make_url, text
from tests.verify_kit import Job as PlainJob
from tests.verify_kit import wrong
from typer.testing import CliRunner

from onceward import KafkaSink, PostgresSink, SqlAlchemySink
from onceward.cli.main import app
from onceward.core.checkpoint import Coordinator
from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.contract.refusals import RefusedError
from onceward.core.contract.transaction import Acknowledgement
from onceward.core.log import DirectoryStore, EpochInput

from .mariadb_kit import PROGRAM, running_mariadb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from onceward.testing.services import KafkaServer

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]

EPOCHS, ROWS, SUBTASKS = 3, 10, 2
KEYS = 7
UNPROVEN = 3
"""The exit code."""


class Job:
    """A pipeline that copies a topic of JSON into a topic and a table, with two subtasks."""

    columns = "id bigint, word varchar(20), price numeric(10, 2), at timestamptz"

    def __init__(self, servers: str, topics: list[str], dsn: str, folder: Path, commit: str, **proof: bool) -> None:
        self.servers, (self.orders, self.copies), self.dsn, self.folder = servers, topics, dsn, folder
        self.look = self.connect()
        self.table = f"orders_{uuid.uuid4().hex[:8]}"
        self.change(f"CREATE TABLE {self.table} ({self.columns})")
        self.producer = confluent_kafka.Producer({"bootstrap.servers": servers, "log_level": 0})
        self.sinks = [
            KafkaSink("topic", bootstrap_servers=servers, topic=self.copies, **proof),
            self.table_sink(commit, **proof),
        ]
        self.coordinator = Coordinator(f"orders-{uuid.uuid4().hex[:8]}", DirectoryStore(folder), self.sinks)
        self.coordinator.open()
        self.written = 0
        self.place = f"sql:{self.table}" if commit.endswith("SQLAlchemy") else f"postgres:{self.table}"

    def connect(self) -> Any:
        return psycopg.connect(self.dsn, autocommit=True)

    def change(self, statement: str) -> None:
        with self.look.cursor() as cursor:
            cursor.execute(statement)

    def table_sink(self, commit: str, **proof: bool) -> PostgresSink | SqlAlchemySink:
        return _into_table(self.dsn, self.table, commit, **proof)

    def order(self, number: int) -> dict[str, Any]:
        return _order(number)

    def run(self, epochs: int = EPOCHS) -> None:
        for _ in range(epochs):
            self.epoch()

    def epoch(self) -> None:
        number, first = self.written, self.written * ROWS
        orders = [self.order(at) for at in range(first, first + ROWS)]
        for order in orders:
            self.producer.produce(self.orders, json.dumps(order), str(order["id"]), 0)
        self.producer.flush()
        start = [json.dumps({self.orders: {"0": first}})] if number else None
        about = EpochInput(query="q", start=start, end=[json.dumps({self.orders: {"0": first + ROWS}})])
        self.coordinator.admit(number, about)
        acks = []
        for subtask in range(SUBTASKS):
            mine = [order for order in orders if order["id"] % SUBTASKS == subtask]
            committables = [self._written(sink, number, subtask, mine) for sink in self.sinks]
            names = tuple(sink.name for sink in self.sinks)
            acks.append(
                Acknowledgement(
                    epoch=number,
                    subtask=subtask,
                    attempt=0,
                    sinks=names,
                    committables=tuple(filter(None, committables)),
                )
            )
        self.coordinator.commit(number, acks, about)
        self.written += 1

    def _written(self, sink: Any, epoch: int, subtask: int, orders: list[dict[str, Any]]) -> Any:
        if sink.name == "topic":
            rows = {"key": [str(o["id"]) for o in orders], "value": [json.dumps(o) for o in orders]}
            batch = pa.record_batch(rows)
        else:
            rows = pa.RecordBatch.from_pylist(orders)
            types = {"price": pa.decimal128(10, 2), "at": pa.timestamp("us", "UTC")}
            kinds = [types.get(field.name, field.type) for field in rows.schema]
            batch = pa.record_batch(
                [c.cast(kind) for c, kind in zip(rows.columns, kinds, strict=True)], rows.schema.names
            )
        attempt = SubtaskEpoch(sink, self.coordinator.context(sink.name, epoch, subtask=subtask))
        attempt.write(batch)
        return attempt.pre_commit()

    def verify(self, *arguments: str, code: int = 0) -> str:
        where = ["--at", f"kafka={self.servers}", "--at", f"postgres={self.dsn}", "--at", f"sql={self.dsn}"]
        done = CliRunner().invoke(app, ["verify", *arguments, *where])
        if isinstance(done.exception, RefusedError):
            raise done.exception
        assert done.exit_code == code, (done.output, done.exception)
        return done.stdout

    def audits(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        targets = ("--target", f"topic=kafka:{self.copies}", "--target", f"table={self.place}")
        told = json.loads(self.verify(str(self.folder), *targets, "--json", *arguments, code=code))
        return {one["sink"]: one for one in told}


def _order(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "word": f"wörd {number % 4}",
        "price": f"{number}.50",
        "at": f"2026-11-22T10:00:{number % 60:02}Z",
    }


@pytest.fixture
def make_job(kafka: KafkaServer, topic: Callable[..., str], dsn: str, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    made: list[Job] = []

    def make(commit: str = "prepared", **proof: bool) -> Job:
        made.append(Job(kafka.bootstrap_servers, [topic(1), topic(2)], dsn, tmp_path / "log", commit, **proof))
        return made[-1]

    yield make
    for job in made:
        job.look.close()


def _into_table(dsn: str, table: str, commit: str, **proof: bool) -> PostgresSink | SqlAlchemySink:
    how, _, sqlalchemy = commit.partition(", ")
    if not sqlalchemy:
        return PostgresSink("table", dsn=dsn, table=table, commit=how, **proof)
    url = dsn.replace("postgresql://", "postgresql+psycopg://", 1)
    return SqlAlchemySink("table", url=url, table=table, commit=how, **proof)


def wrong_epochs(audit: dict[str, Any]) -> list[Any]:
    return [line["epoch"] for line in audit["epochs"] if line["verdict"] != "proven"]


@pytest.mark.parametrize("commit", ["prepared", "staging", "prepared, SQLAlchemy", "staging, SQLAlchemy"])
def test_a_row_that_is_removed_doubled_or_altered_is_found_and_named(make_job: Callable[..., Job], commit: str) -> None:
    job = make_job(commit)
    job.run()
    found = job.audits("--source", f"kafka:{job.orders}")
    assert [audit["proven"] for audit in found.values()] == [True, True]
    assert [line["found"] for line in found["table"]["epochs"]] == [ROWS] * EPOCHS

    job.look.execute(f"DELETE FROM {job.table} WHERE id = 3")
    job.look.execute(f"UPDATE {job.table} SET word = 'other' WHERE id = 25")
    job.look.execute(f"INSERT INTO {job.table} SELECT * FROM {job.table} WHERE id = 14")
    job.producer.produce(job.copies, json.dumps(_order(14)), "14", 1)
    job.producer.flush()

    found = job.audits("--source", f"kafka:{job.orders}", "--key", "id", code=1)
    topic, table = found["topic"], found["table"]
    assert wrong_epochs(topic) == []
    assert topic["foreign"] == 1
    [doubled] = topic["rows"]["findings"]
    assert doubled["row"]["key"] == "14"
    assert doubled["positions"][0].startswith(f"{job.copies}-1@")

    assert wrong_epochs(table) == [0, 2]
    assert table["foreign"] == 2
    named = {(one["kind"], one["row"]["id"]) for one in table["rows"]["findings"]}
    assert named == {("missing", 3), ("wrong", 25), ("wrong", 14)}

    assert wrong_epochs(job.audits("--epochs", "1:1", code=1)["table"]) == []
    told = job.verify(str(job.folder), "--target", f"table={job.place}", code=1)
    assert "epoch 0: 10 rows were written, 9 of them are there" in told
    assert "2 rows that no epoch wrote" in told


class Upserts(Job):
    """A pipeline of which each epoch overwrites some of the keys of earlier ones: 7 keys, 10 rows an epoch."""

    columns = Job.columns.replace("id bigint", "id bigint PRIMARY KEY")

    def table_sink(self, commit: str, **_: bool) -> PostgresSink | SqlAlchemySink:
        return PostgresSink("table", dsn=self.dsn, table=self.table, mode="upsert", key=["id"], commit=commit)

    def order(self, number: int) -> dict[str, Any]:
        return _order(number) | {"id": number % KEYS + 100 * (number // (ROWS * 2)), "word": f"v{number}"}

    def audit(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        source = ("--source", f"kafka:{self.orders}", "--key", "id")
        return self.audits(*source, *arguments, code=code)["table"]


@pytest.fixture
def upserts(kafka: KafkaServer, topic: Callable[..., str], dsn: str, tmp_path: Path) -> Iterator[Upserts]:
    job = Upserts(kafka.bootstrap_servers, [topic(1), topic(2)], dsn, tmp_path / "log", "staging")
    job.run()
    yield job
    job.look.close()


def test_the_newest_row_of_each_key_proves_upserts(upserts: Upserts) -> None:
    without = upserts.audits(code=UNPROVEN)["table"]
    assert (without["verdict"], without["foreign"]) == ("unproven", 0)
    found = upserts.audit()
    assert (found["verdict"], found["rows"]) == ("proven", None)
    assert [line["keys"] for line in found["epochs"]] == [0, KEYS, KEYS]
    assert upserts.audit("--epochs", "0:1")["verdict"] == "proven"  # what later epochs have overwritten is not judged
    text = upserts.verify(
        *(str(upserts.folder), "--target", f"table={upserts.place}", "--source", f"kafka:{upserts.orders}"),
        *("--key", "id"),
    )
    assert "proven: epochs 0 to 2, the newest rows of 14 keys" in text
    upserts.epoch()
    assert upserts.audit()["verdict"] == "proven"


@pytest.mark.parametrize(
    ("damage", "kinds", "foreign"),
    [
        ("UPDATE {} SET word = 'other' WHERE id = 103", {("wrong", 103)}, 1),
        ("DELETE FROM {} WHERE id = 103", {("missing", 103)}, 0),
        ("INSERT INTO {} SELECT id + 1000, word FROM {} WHERE id = 103", {("wrong", 1103)}, 1),
        ("UPDATE {} SET word = 'v3', price = 3.5 WHERE id = 3", {("wrong", 3)}, 1),  # as an earlier epoch had it
    ],
)
def test_a_row_of_upserts_that_is_changed_lost_or_added_by_hand_is_named(
    upserts: Upserts, damage: str, kinds: set[tuple[str, int]], foreign: int
) -> None:
    upserts.look.execute(damage.replace("{}", upserts.table))
    found = upserts.audit(code=1)
    assert (found["verdict"], found["foreign"]) == ("differs", foreign)
    assert {(one["kind"], one["row"]["id"]) for one in found["rows"]["findings"]} == kinds
    if foreign:
        assert upserts.audits(code=1)["table"]["verdict"] == "differs"  # xmin shows it without the source


class UpsertsIntoMariaDb(Upserts):
    """The same into a table that does not show which epoch wrote a row; its key has two columns."""

    columns = (
        "id bigint, word varchar(20) COLLATE utf8mb4_nopad_bin, price decimal(10, 2), yes tinyint(1), at timestamp(6), "
        "day date, PRIMARY KEY (id, word)"
    )

    def connect(self) -> Any:
        url = make_url(self.dsn)
        return pymysql.connect(
            host=url.host, port=int(url.port or 0), user=url.username, database=url.database, autocommit=True
        )

    def table_sink(self, commit: str, **_: bool) -> SqlAlchemySink:  # noqa: ARG002 - upserts are staged
        return SqlAlchemySink("table", url=self.dsn, table=self.table, key=["id", "word"])

    def order(self, number: int) -> dict[str, Any]:
        row = super().order(number)
        return row | {"word": f"Wörd {row['id']}", "yes": number % 3 == 0}

    def audit(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        source = ("--source", f"kafka:{self.orders}", "--key", "id,word")
        return self.audits(*source, *arguments, code=code)["table"]


@pytest.mark.skipif(PROGRAM is None, reason="MariaDB's server is not installed")
def test_upserts_into_mariadb_are_proven_by_the_newest_row_of_each_key_and_the_ledger(
    kafka: KafkaServer, topic: Callable[..., str], tmp_path: Path
) -> None:
    with running_mariadb() as server:
        job = UpsertsIntoMariaDb(
            kafka.bootstrap_servers, [topic(1), topic(2)], server.url, tmp_path / "log", "auto, SQLAlchemy"
        )
        job.run()
        assert job.audits(code=UNPROVEN)["table"]["verdict"] == "unproven"
        found = job.audit()
        assert (found["verdict"], found["rows"], found["left_out"]) == ("proven", None, [])
        assert [(line["epoch"], line["keys"], line["found"]) for line in found["epochs"]] == [
            (0, 0, 0),
            (1, KEYS, KEYS),
            (2, KEYS, KEYS),
        ]
        job.change(f"UPDATE {job.table} SET price = price + 1 WHERE id = 3")
        job.change(f"DELETE FROM {job.table} WHERE id = 103")
        job.change(
            f"INSERT INTO {job.table} SELECT id + 1000, word, price, yes, at, day FROM {job.table} WHERE id = 104"
        )
        found = job.audit(code=1)
        assert (found["verdict"], found["foreign"]) == ("differs", 1)
        named = {(one["kind"], one["row"]["id"]) for one in found["rows"]["findings"]}
        assert named == {("wrong", 3), ("missing", 103), ("wrong", 1104)}
        assert [line["epoch"] for line in found["epochs"] if line["verdict"] == "differs"] == [1, 2]
        job.change("UPDATE onceward_ledger SET row_count = row_count + 1 WHERE epoch = 0 AND subtask = 0")
        told = job.verify(str(job.folder), "--target", f"table={job.place}", code=1)
        assert "epoch 0: the decision log records 10 rows, and the target's ledger 11" in told
        job.look.close()


@pytest.mark.skipif(PROGRAM is None, reason="MariaDB's server is not installed")
def test_a_time_of_mariadb_of_more_hours_than_a_day_differs(tmp_path: Path) -> None:
    """The driver gives a difference of times, and SQLAlchemy a time of day of it."""
    with running_mariadb() as server, create_engine(server.url, isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text("CREATE TABLE times (id int, clock time(6))"))
        job = PlainJob(SqlAlchemySink("table", url=server.url, table="times"), tmp_path)
        job.run(1, lambda *ids: pa.record_batch({"id": pa.array(ids, pa.int32()), "clock": [time(1)] * len(ids)}))
        place = ("sql:times", "--at", f"sql={server.url}")
        for other in ("25:00:00", "-23:00:00", "01:00:00.000001"):
            assert wrong(job.audit(*place)) == []
            connection.execute(text(f"UPDATE times SET clock = '{other}' WHERE id = 3"))
            assert wrong(job.audit(*place, code=1)) == [None]
            connection.execute(text("UPDATE times SET clock = '01:00:00' WHERE id = 3"))


def test_a_ledger_with_another_number_of_rows_differs(upserts: Upserts) -> None:
    upserts.look.execute("UPDATE onceward.ledger SET row_count = row_count + 1 WHERE epoch = 1 AND subtask = 0")
    found = upserts.audits(code=1)["table"]
    assert found["verdict"] == "differs"


def test_a_key_that_the_source_does_not_have_is_refused(upserts: Upserts) -> None:
    where = ("--target", f"table={upserts.place}", "--source", f"kafka:{upserts.orders}", "--key", "name")
    with pytest.raises(RefusedError, match="no column 'name'"):
        upserts.verify(str(upserts.folder), *where)


def test_without_a_decision_log_a_topic_and_a_table_are_compared_by_key(make_job: Callable[..., Job]) -> None:
    job = make_job()
    job.run(1)
    places = ("--source", f"kafka:{job.orders}", "--target", f"postgres:{job.table}", "--key", "id")
    assert "0 missing, 0 duplicated, 0 wrong" in job.verify(*places)
    job.look.execute(f"DELETE FROM {job.table} WHERE id = 3")
    job.look.execute(f"INSERT INTO {job.table} SELECT * FROM {job.table} WHERE id = 4")
    told = job.verify(*places, code=1)
    assert "1 missing, 1 duplicated, 0 wrong" in told
    assert '"id": 3' in told


def test_epochs_without_a_proof_are_said_to_have_none(make_job: Callable[..., Job]) -> None:
    job = make_job(proof=False)
    job.run(1)
    found = job.audits(code=UNPROVEN)
    assert [audit["epochs"][0]["verdict"] for audit in found.values()] == ["unproven", "unproven"]
    told = job.verify(str(job.folder), "--target", f"topic=kafka:{job.copies}", code=UNPROVEN)
    assert "no hash of the rows was recorded" in told
    assert "give --source and --key" not in told  # a topic keeps all rows of a key
    told = job.verify(str(job.folder), "--target", f"table=postgres:{job.table}", code=UNPROVEN)
    assert "give --source and --key" in told


def test_values_that_python_or_json_write_otherwise_are_proven(dsn: str, tmp_path: Path) -> None:
    """Years before 1 and after 9999, UUIDs and bytes: with a decision log, and beside their JSON without one."""
    uuids = ["12345678-1234-5678-1234-56781234567a", None]
    far = pa.array([-62_135_596_800_000_001, 253_402_300_800_000_000], pa.int64())
    batch = pa.record_batch(
        {
            "id": uuids,
            "raw": [b"\0\xff", None],
            "day": pa.array([-719_163, 2_932_897], pa.int32()).cast(pa.date32()),
            "local": far.cast(pa.timestamp("us")),
            "at": far.cast(pa.timestamp("us", "UTC")),
        }
    )
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE odd (id uuid, raw bytea, day date, local timestamp, at timestamptz)")
        sink = PostgresSink("table", dsn=dsn, table="odd")
        coordinator = Coordinator("odd", DirectoryStore(tmp_path / "log"), [sink])
        coordinator.open()
        about = EpochInput(query="q", end=["1"])
        coordinator.admit(0, about)
        attempt = SubtaskEpoch(sink, coordinator.context("table", 0, subtask=0))
        attempt.write(batch)
        committable = attempt.pre_commit()
        assert committable is not None
        ack = Acknowledgement(epoch=0, subtask=0, attempt=0, sinks=("table",), committables=(committable,))
        coordinator.commit(0, [ack], about)
        (tmp_path / "source").mkdir()
        lines = [json.dumps({"id": uuids[0], "raw": "AP8="}), json.dumps({"id": None, "raw": None})]
        (tmp_path / "source" / "a.jsonl").write_text("\n".join(lines) + "\n")

        def verify(*arguments: str) -> str:
            done = CliRunner().invoke(
                app, ["verify", *arguments, "--target", "postgres:odd", "--at", f"postgres={dsn}"]
            )
            assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
            return done.stdout

        assert "proven: epoch 0, 2 rows" in verify(str(tmp_path / "log"))
        without_a_log = ("--source", f"files:{tmp_path / 'source'}")
        assert "0 missing, 0 duplicated, 0 wrong" in verify(*without_a_log)
        connection.execute("UPDATE odd SET day = 'infinity', id = replace(id::text, 'a', 'b')::uuid")
        assert "epoch 0: 2 rows were written, 0 of them are there" in verify(str(tmp_path / "log"))
        assert uuids[0][:-1] + "b" in verify(*without_a_log)
