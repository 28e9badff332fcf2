"""Checks of a Kafka cluster: what the commit protocol needs of its transactions, and what this client may do.

A missing permission otherwise shows at the first commit.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._config import ConfigResource

from onceward.connectors.kafka.admin import admin_of, check_reachable, cluster_of
from onceward.connectors.kafka.errors import Code, code_name
from onceward.connectors.kafka.settings import KafkaSettings
from onceward.core.errors import KafkaError
from onceward.core.names import FORMAT, check_pipeline_name

from . import Finding, failed, ok, skipped, warning

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from confluent_kafka.admin import AdminClient

_ANSWER_SECONDS: Final = 15
_SHORT_TIMEOUT_MS: Final = 15 * 60 * 1000
_TRANSACTION_LOG: Final = "__transaction_state"
_SAFE_REPLICAS: Final = 3
_SAFE_IN_SYNC: Final = 2


def check_kafka(
    bootstrap_servers: str | None, config: Mapping[str, str], topics: Sequence[str] = (), pipeline: str | None = None
) -> list[Finding]:
    """Brokers reachable, transaction timeouts, replication of the transaction log, open transactions, permissions."""
    if bootstrap_servers is None:
        return [skipped("kafka", "give --bootstrap-servers to check it")]
    settings = KafkaSettings(bootstrap_servers, config)
    try:
        check_reachable(settings)
        admin = admin_of(settings).client
        cluster = admin.list_topics(timeout=_ANSWER_SECONDS)
        facts = _config(admin, ConfigResource.Type.BROKER, str(next(iter(cluster.brokers))))
    except KafkaError as error:
        return [failed("kafka broker", str(error), "check address, network and security settings")]
    except KafkaException as error:
        return [failed("kafka broker", str(error.args[0].str()), "check address, network and security settings")]
    found = [ok("kafka broker", f"brokers: {len(cluster.brokers)}, topics: {len(cluster.topics)}")]
    found += [_timeout(facts), *_replication(admin, facts, len(cluster.brokers)), _expiry(facts)]
    found.append(_open(settings, facts))
    found += [_topic(admin, topic) for topic in topics]
    if topics:
        found.append(_cluster(admin))
    if pipeline is not None:
        found.append(_ids(settings, pipeline))
    return found


def _config(admin: AdminClient, kind: Any, name: str) -> dict[str, str | None]:
    resource = ConfigResource(kind, name)
    entries: Mapping[str, Any] = admin.describe_configs([resource])[resource].result(_ANSWER_SECONDS)
    return {key: entry.value for key, entry in entries.items()}


def _timeout(facts: Mapping[str, str | None]) -> Finding:
    most = int(facts.get("transaction.max.timeout.ms") or 0)
    name = "transaction.max.timeout.ms"
    if most < _SHORT_TIMEOUT_MS:
        return warning(
            name,
            f"{most} ms",
            "prepared transactions older than this are aborted, and their rows are lost. Raise it on the brokers above "
            "the longest outage of the driver that you must survive (Kafka's default is 15 minutes; a day is common)",
        )
    return ok(name, f"{most / 60000:.0f} min: the longest outage of the driver that prepared data survives")


def _replication(admin: AdminClient, facts: Mapping[str, str | None], brokers: int) -> list[Finding]:
    """Of the transaction log as it is; before the first transaction, as the brokers would make it."""
    replicas = int(facts.get("transaction.state.log.replication.factor") or 0)
    in_sync = int(facts.get("transaction.state.log.min.isr") or 0)
    try:
        topic: Any = admin.describe_topics(TopicCollection([_TRANSACTION_LOG]))[_TRANSACTION_LOG].result()
        replicas = min(len(partition.replicas) for partition in topic.partitions)
        config = _config(admin, ConfigResource.Type.TOPIC, _TRANSACTION_LOG)
        in_sync = int(config.get("min.insync.replicas") or in_sync)
    except KafkaException:
        pass  # it is made with the first transaction, or may not be looked at
    return [
        _at_least(_SAFE_REPLICAS, replicas, "transaction.state.log.replication.factor", brokers),
        _at_least(_SAFE_IN_SYNC, in_sync, "transaction.state.log.min.isr", brokers),
    ]


def _at_least(safe: int, value: int, name: str, brokers: int) -> Finding:
    if value >= safe:
        return ok(name, str(value))
    why = f" (brokers of this cluster: {brokers})" if brokers < safe else ""
    advice = (
        f"in production, use {safe}. With less, losing a broker can lose decided transactions{why}. The setting is for "
        f"a new cluster; on one that has {_TRANSACTION_LOG}, reassign its partitions and set its min.insync.replicas"
    )
    return warning(name, str(value), advice)


def _expiry(facts: Mapping[str, str | None]) -> Finding:
    name = "transactional.id.expiration.ms"
    kept, most = int(facts.get(name) or 0), int(facts.get("transaction.max.timeout.ms") or 0)
    if kept <= most:
        return failed(name, f"{kept} ms", f"raise it above transaction.max.timeout.ms ({most} ms)")
    return ok(name, f"{kept / 86400000:.1f} days")


def _open(settings: KafkaSettings, facts: Mapping[str, str | None]) -> Finding:
    """Transactions under onceward's names that hold readers back, and may be close to their timeout."""
    name = "open transactions"
    client = cluster_of(settings).transactions
    try:
        ids = client.list_transactions(["Ongoing"], prefix=f"{FORMAT}:")
        found = [seen.open.handle for seen in client.describe(ids).values() if seen.open is not None]
    except KafkaError as error:
        return skipped(name, str(error))
    oldest = max((time.time() - handle.started_ms / 1000 for handle in found), default=0.0)
    told = f"{len(found)}, the oldest {oldest:.0f} s old" if found else "0"
    if oldest > int(facts.get("transaction.max.timeout.ms") or 0) / 2000:
        advice = "they block readers until they expire. Restart their pipelines, or see `onceward txn list`"
        return warning(name, told, advice)
    return ok(name, told)


_ON_TOPIC: Final = {
    AclOperation.WRITE: "to send",
    AclOperation.DESCRIBE: "to find partitions",
    AclOperation.READ: "to ask partitions for open transactions; sources read",
}


def _topic(admin: AdminClient, topic: str) -> Finding:
    check = f"topic {topic}"
    asked = admin.describe_topics(
        TopicCollection([topic]), include_authorized_operations=True, request_timeout=_ANSWER_SECONDS
    )
    try:
        described: Any = asked[topic].result()
    except KafkaException as error:
        return failed(check, str(error.args[0].str()), "create it, or grant Describe on it")
    granted = described.authorized_operations
    missing = [f"{op.name.capitalize()} ({why})" for op, why in _ON_TOPIC.items() if op not in granted]
    if missing:
        why = ", ".join(missing)
        return failed(check, f"{len(described.partitions)} partitions, no permission to {why}", "grant it")
    return ok(check, f"{len(described.partitions)} partitions; may read and write")


def _cluster(admin: AdminClient) -> Finding:
    check = "cluster permissions"
    asked = admin.describe_cluster(include_authorized_operations=True, request_timeout=_ANSWER_SECONDS)
    try:
        described: Any = asked.result()
    except KafkaException as error:
        return failed(check, str(error.args[0].str()), "check address, network and security settings")
    if AclOperation.ALTER not in described.authorized_operations:
        return warning(
            check,
            "no permission to Alter",
            "grant it, so that markers that a coordinator left out (KAFKA-20734) are written automatically",
        )
    return ok(check, "may Alter")


def _ids(settings: KafkaSettings, pipeline: str) -> Finding:
    """Describe is seen by asking for an id that nobody has; Write only shows when it is used."""
    prefix = f"{FORMAT}:{check_pipeline_name(pipeline)}:"
    described = cluster_of(settings).transactions.describe([f"{prefix}doctor"])
    code = described[f"{prefix}doctor"].code
    if code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        return failed(
            "transactional ids", f"no permission to Describe {prefix}…", f"grant Describe and Write on prefix {prefix}"
        )
    if code not in (Code.NONE, Code.TRANSACTIONAL_ID_NOT_FOUND):
        return failed(
            "transactional ids", f"not known: {code_name(code)}", "check the broker, and run the command again"
        )
    return ok("transactional ids", f"may Describe {prefix}…")
