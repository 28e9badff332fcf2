"""Checks of a Kafka cluster: what the commit protocol needs of its transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource

from ..kafka.settings import KafkaSettings
from .finding import Finding, failed, ok, skipped, warning
from .permissions import check_permissions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ANSWER_SECONDS = 15
_SHORT_TIMEOUT_MS = 15 * 60 * 1000
_SAFE_REPLICAS = 3
_SAFE_IN_SYNC = 2


def check_kafka(
    bootstrap_servers: str | None, config: Mapping[str, str], topics: Sequence[str] = (), pipeline: str | None = None
) -> list[Finding]:
    """Broker reachable, transaction time-outs, replication of the transaction log, permissions."""
    if bootstrap_servers is None:
        return [skipped("kafka", "give --bootstrap-servers to check it")]
    settings = KafkaSettings(bootstrap_servers, config)
    try:
        admin = AdminClient({**settings.for_admin(), "log_level": 0})  # what goes wrong is said below
        cluster = admin.list_topics(timeout=_ANSWER_SECONDS)
        broker = next(iter(cluster.brokers))
        resource = ConfigResource(ConfigResource.Type.BROKER, str(broker))
        facts = {
            name: entry.value
            for name, entry in admin.describe_configs([resource])[resource].result(_ANSWER_SECONDS).items()
        }
    except KafkaException as error:
        return [failed("kafka broker", str(error.args[0].str()), "check address, network and security settings")]
    found = [ok("kafka broker", f"{len(cluster.brokers)} brokers, {len(cluster.topics)} topics")]
    found += [_timeout(facts), *_replication(facts, len(cluster.brokers)), _expiry(facts)]
    return found + check_permissions(admin, settings, topics, pipeline)


def _timeout(facts: Mapping[str, str | None]) -> Finding:
    most = int(facts.get("transaction.max.timeout.ms") or 0)
    name = "transaction.max.timeout.ms"
    if most < _SHORT_TIMEOUT_MS:
        return warning(
            name,
            f"{most} ms",
            "a prepared transaction that outlives it is lost: raise it on the brokers above the longest outage of the "
            "driver that you want to survive (15 minutes is Kafka's default, a day is not unusual)",
        )
    return ok(name, f"{most / 60000:.0f} min: the longest outage of the driver that prepared data survives")


def _replication(facts: Mapping[str, str | None], brokers: int) -> list[Finding]:
    found = []
    for name, safe in (
        ("transaction.state.log.replication.factor", _SAFE_REPLICAS),
        ("transaction.state.log.min.isr", _SAFE_IN_SYNC),
    ):
        value = int(facts.get(name) or 0)
        if value >= safe:
            found.append(ok(name, str(value)))
        else:
            why = f" (the cluster has {brokers} brokers)" if brokers < safe else ""
            advice = f"in production set it to {safe}: with less, losing a broker can lose decided transactions{why}"
            found.append(warning(name, str(value), advice))
    return found


def _expiry(facts: Mapping[str, str | None]) -> Finding:
    name = "transactional.id.expiration.ms"
    kept, most = int(facts.get(name) or 0), int(facts.get("transaction.max.timeout.ms") or 0)
    if kept <= most:
        return failed(name, f"{kept} ms", f"raise it above transaction.max.timeout.ms ({most} ms)")
    return ok(name, f"{kept / 86400000:.1f} days")
