"""What `onceward doctor` sees of real services."""

from __future__ import annotations

from typing import TYPE_CHECKING

import confluent_kafka
import psycopg
import pytest

from onceward.cli.doctor import Finding, Health
from onceward.cli.doctor.checks import run_checks

if TYPE_CHECKING:
    from collections.abc import Callable

    from onceward.testing.services import KafkaServer


def open_transactions(kafka: KafkaServer) -> int:
    """How many the tests before have left open under onceward's names."""
    found = by_check(run_checks(bootstrap_servers=kafka.bootstrap_servers))["open transactions"].found
    return int(found.partition(",")[0])


def by_check(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings}


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
        seen = by_check(run_checks(bootstrap_servers=kafka.bootstrap_servers, topics=[name, "nowhere"]))
    finally:
        producer.abort_transaction(30)
    assert seen["open transactions"].found.startswith(f"{before + 1}, the oldest ")
    if not before:
        assert seen["open transactions"].health is Health.OK  # younger than half of the longest timeout
    assert seen["transaction.state.log.replication.factor"].found == "1"
    assert seen["transaction.state.log.min.isr"].health is Health.WARNING
    assert seen[f"topic {name}"].health is Health.OK
    assert seen["topic nowhere"].health is Health.FAILED


@pytest.mark.postgres
def test_a_database_is_looked_at_and_not_changed(dsn: str) -> None:
    seen = by_check(run_checks(dsn=dsn))
    assert seen["max_prepared_transactions"].health is Health.OK
    assert "may create it" in seen["schema for the ledger"].found
    with psycopg.connect(dsn) as connection:
        schemas = connection.execute("SELECT count(*) FROM pg_namespace WHERE nspname = 'onceward'").fetchone()
    assert schemas == (0,)
