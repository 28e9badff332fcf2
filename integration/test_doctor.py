"""What `onceward doctor` sees of real services."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING
from uuid import uuid4

import confluent_kafka
import psycopg
import pytest
from psycopg import sql
from typer.testing import CliRunner

from onceward import FileBackend, KafkaSink, Pipeline, PostgresSink, SequenceSource
from onceward.cli.doctor import run_checks
from onceward.cli.main import app
from onceward.cli.shared_options import Access
from onceward.connectors.kafka.admin import cluster_of, publish_offsets
from onceward.connectors.kafka.checks import check_parts
from onceward.connectors.kafka.settings import KafkaSettings
from onceward.core.contract.findings import Finding, Health

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from onceward.testing.services import KafkaServer


def open_transactions(kafka: KafkaServer) -> int:
    """How many the tests before have left open under onceward's names."""
    found = by_check(run_checks(Access(at=[f"kafka={kafka.bootstrap_servers}"])))["open transactions"].found
    return int(found.partition(" ")[0].replace("none", "0"))


def by_check(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings}


@pytest.mark.kafka
def test_a_topic_that_its_sink_may_create_is_checked_if_it_exists_and_named_if_not(
    kafka: KafkaServer, topic: Callable[..., str]
) -> None:
    name, absent = topic(partitions=1), f"absent-{uuid4().hex}"
    sinks = [
        KafkaSink(f"sink{number}", bootstrap_servers=kafka.bootstrap_servers, topic=to, create_topic=True)
        for number, to in enumerate((name, absent))
    ]
    seen = by_check(list(check_parts(sinks, [], None)))
    assert seen[f"topic {name}"].found == "1 partitions; may read and write"
    assert seen[f"topic {absent}"].health is Health.SKIPPED
    assert seen[f"topic {absent}"].where == "sink1"
    assert not cluster_of(sinks[1].settings).partitions_of(absent)


@pytest.mark.kafka
def test_open_transactions_and_the_real_replication_of_their_log_are_seen(
    kafka: KafkaServer, topic: Callable[..., str]
) -> None:
    name = topic(partitions=1)
    before = open_transactions(kafka)
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "onceward:1:doctor:s:0a1b2c3d:0a1b:0"}
    producer = confluent_kafka.Producer(settings)
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(name, b"waits")
    producer.flush(30)
    try:
        findings = run_checks(
            Access(at=[f"kafka={kafka.bootstrap_servers}"]), places=[f"kafka:{name}", "kafka:nowhere"]
        )
    finally:
        producer.abort_transaction(30)
    seen = by_check(findings)
    assert seen["open transactions"].found.startswith(f"{before + 1} under onceward's names, the oldest ")
    if not before:
        assert seen["open transactions"].health is Health.OK  # younger than half of the longest timeout
    assert seen["transaction.state.log.replication.factor"].found == "1"
    assert seen["transaction.state.log.min.isr"].health is Health.WARNING
    assert seen[f"topic {name}"].health is Health.OK
    assert seen["topic nowhere"].health is Health.FAILED
    replication = next(finding for finding in findings if (finding.check, finding.where) == ("replication", name))
    assert replication.found == "replicas 1, min.insync.replicas 1, unclean.leader.election.enable false"


@pytest.mark.kafka
def test_an_open_transaction_of_another_application_is_shown_apart_from_onceward_s(
    kafka: KafkaServer, topic: Callable[..., str]
) -> None:
    name, servers = topic(partitions=1), kafka.bootstrap_servers
    hung = f"hung-app-{name}"
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "transactional.id": hung})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(name, b"waits")
    producer.flush(30)
    try:
        findings = run_checks(Access(at=[f"kafka={servers}"]), places=[f"kafka:{name}"])
        listed = CliRunner().invoke(app, ["txn", "list", "--at", f"kafka={servers}"]).output
    finally:
        producer.abort_transaction(30)
    seen = by_check(findings)["other applications"]
    assert (seen.health, seen.where) == (Health.WARNING, name)
    assert re.match(rf"partition 0: an open transaction of producer \d+, epoch 0 {hung}, open for \d+ s", seen.found)
    assert re.search(rf"{hung}; producer \d+, epoch 0, open for .+; in {name}-0", listed), listed
    findings = run_checks(Access(at=[f"kafka={servers}"]), places=[f"kafka:{name}"])
    assert "other applications" not in by_check(findings)


@pytest.mark.kafka
def test_a_consumer_that_reads_what_may_be_aborted_is_told(kafka: KafkaServer, topic: Callable[..., str]) -> None:
    name, servers = topic(partitions=1), kafka.bootstrap_servers
    config = {"bootstrap.servers": servers, "transactional.id": f"other-{name}", "transaction.timeout.ms": 600_000}
    producer = confluent_kafka.Producer(config)
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(name, b"may be aborted")
    producer.flush(30)
    try:
        for group, offset in ((f"waits-{name}", 0), (f"runs-ahead-{name}", 1)):
            publish_offsets(KafkaSettings(servers), group, {name: {"0": offset}})
        seen = by_check(run_checks(Access(at=[f"kafka={servers}"]), places=[f"kafka:{name}"]))["consumers"]
    finally:
        producer.abort_transaction(30)
    assert seen.health is Health.WARNING
    assert seen.found.startswith(f"runs-ahead-{name} read beyond")
    assert seen.where == name


@pytest.mark.postgres
def test_a_log_that_is_lost_is_told(dsn: str, tmp_path: Path) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE numbers (n bigint)")
    pipeline = Pipeline("numbers", store=str(tmp_path / "log"), backend=FileBackend(tmp_path / "state"))
    pipeline.source(SequenceSource([{"n": 1}])).sink(PostgresSink("table", dsn=dsn, table="numbers"))
    pipeline.run()
    seen = by_check(run_checks(Access(at=[f"postgres={dsn}"]), store=str(tmp_path / "log")))
    assert (seen["ownership"].health, seen["ownership"].where) == (Health.OK, "table")
    assert seen["decided transactions"].health is seen["starts"].health is Health.OK
    assert seen["standbys"].found == "none connected"
    assert seen["session timeouts"].health is seen["durability"].health is Health.OK
    with psycopg.connect(dsn) as connection:
        connection.execute("DELETE FROM onceward.pipelines")
    seen = by_check(run_checks(Access(at=[f"postgres={dsn}"]), store=str(tmp_path / "log")))
    assert (seen["ownership"].health, seen["ownership"].found[:17]) == (Health.FAILED, "this pipeline has")
    shutil.rmtree(tmp_path / "log")
    seen = by_check(run_checks(Access(at=[f"postgres={dsn}"]), store=str(tmp_path / "log"), pipeline="numbers"))
    assert seen["ownership"].health is Health.FAILED
    assert "knows this pipeline and sink from decision log" in seen["ownership"].found


@pytest.mark.postgres
def test_timeouts_are_harmless(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        name = sql.Identifier(connection.info.dbname)
        setting = sql.SQL("ALTER DATABASE {} SET idle_in_transaction_session_timeout = '30s'")
        connection.execute(setting.format(name))
    seen = by_check(run_checks(Access(at=[f"postgres={dsn}"])))["session timeouts"]
    assert seen.health is Health.OK
    assert seen.found.startswith("idle_in_transaction_session_timeout 30 s; harmless")


@pytest.mark.postgres
def test_a_table_with_more_partitions_than_the_server_has_room_for_is_named(dsn: str) -> None:
    assert by_check(run_checks(Access(at=[f"postgres={dsn}"])))["max_locks_per_transaction"].health is Health.OK
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE many (id bigint PRIMARY KEY) PARTITION BY LIST (id)")
        for n in range(600):
            connection.execute(f"CREATE TABLE many_{n} PARTITION OF many FOR VALUES IN ({n})".encode())
    seen = by_check(run_checks(Access(at=[f"postgres={dsn}"])))["max_locks_per_transaction"]
    assert seen.health is Health.WARNING
    assert "writes to all 600 partitions of many takes 1202" in seen.found


@pytest.mark.postgres
def test_the_server_of_a_log_is_looked_at(dsn: str) -> None:
    url = dsn.replace("postgresql://", "postgresql+psycopg://")
    findings = run_checks(Access(), store=url, pipeline="p")
    [seen] = [finding for finding in findings if finding.check == "standbys"]
    assert (seen.health, seen.where) == (Health.OK, "the decision log's server")


@pytest.mark.postgres
def test_a_database_is_looked_at_and_not_changed(dsn: str) -> None:
    seen = by_check(run_checks(Access(at=[f"postgres={dsn}"])))
    assert seen["max_prepared_transactions"].health is Health.OK
    assert "may create it" in seen["schema for the ledger"].found
    with psycopg.connect(dsn) as connection:
        schemas = connection.execute("SELECT count(*) FROM pg_namespace WHERE nspname = 'onceward'").fetchone()
    assert schemas == (0,)
    assert (
        by_check(run_checks(Access(at=[f"postgres={dsn}"], set_=["postgres:ledger_schema=public"])))[
            "schema for the ledger"
        ].found
        == "there"
    )
    assert (
        "may create it"
        in by_check(run_checks(Access(at=[f"postgres={dsn}"], set_=["postgres:ledger_schema=Public"])))[
            "schema for the ledger"
        ].found
    )
