"""Checks of a Kafka cluster: what the commit protocol needs of its transactions, and what this client may do.

A missing permission otherwise shows at the first commit.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaException,
    TopicCollection,
)
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._config import ConfigResource

from onceward.core.contract.findings import Finding, Health, failed, ok, skipped, warning
from onceward.core.contract.names import FORMAT, check_pipeline_name
from onceward.core.errors import ConfigurationError, KafkaError, SourceError

from .admin import GROUP_SECONDS, admin_of, check_reachable, cluster_of
from .error_codes import Code, code_name
from .ownership import describe_listed, open_elsewhere, producer_words
from .positions import LATEST, Partition
from .sink import KafkaSink
from .source import KafkaSource
from .topic_metadata import Lookup

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from confluent_kafka.admin import AdminClient

    from .admin import Admin
    from .positions import Offsets
    from .settings import KafkaSettings

_ANSWER_SECONDS: Final = 15
_SHORT_TIMEOUT_MS: Final = 15 * 60 * 1000
_TRANSACTION_LOG: Final = "__transaction_state"
_SAFE_REPLICAS: Final = 3
_SAFE_IN_SYNC: Final = 2
_MOST_GROUPS: Final = 200
"""Consumer groups that are asked for their offsets: one request each."""


def check_kafka(settings: KafkaSettings, topics: Sequence[str] = (), pipeline: str | None = None) -> list[Finding]:
    """Check the brokers: whether they answer, timeouts, replication, open transactions, consumers and permissions."""
    try:
        check_reachable(settings)
        admin = admin_of(settings).client
        cluster = admin.list_topics(timeout=_ANSWER_SECONDS)
        facts = _least(admin, sorted(cluster.brokers))
    except KafkaError as error:
        return [failed("kafka broker", str(error), "check address, network and security settings")]
    except KafkaException as error:
        return [failed("kafka broker", str(error.args[0].str()), "check address, network and security settings")]
    findings = [ok("kafka broker", f"brokers: {len(cluster.brokers)}, topics: {len(cluster.topics)}")]
    findings += [_timeout(facts), *_replication(admin, facts, len(cluster.brokers)), _expiry(facts)]
    findings.append(_open(settings, facts))
    findings += [_transaction_log(admin), *_others(settings, topics)]
    for topic in topics:
        findings += [_topic(admin, topic), *check_replication(admin, topic)]
    if topics:
        findings += [*_consumers(settings, topics), _cluster(admin)]
    if pipeline is not None:
        findings.append(_ids(settings, pipeline))
    return findings


def check_parts(sinks: Sequence[Any], sources: Sequence[Any], pipeline: str | None) -> Iterator[Finding]:
    """Check each cluster once, with the topics of all these sinks and sources."""
    written: dict[KafkaSettings, list[str]] = {}
    read: dict[KafkaSettings, list[str]] = {}
    for sink in sinks:
        if isinstance(sink, KafkaSink):
            findings = _sink_settings(sink)
            absent = any(finding.health is Health.SKIPPED for finding in findings)
            topics = [sink.topic] if sink.topic and not absent else []
            written.setdefault(sink.settings.connection(), []).extend(topics)
            yield from findings
    for source in sources:
        if isinstance(source, KafkaSource):
            read.setdefault(source.settings.connection(), []).extend(source.selection.topics or [])
    for settings, topics in written.items():
        yield from check_kafka(settings, list(dict.fromkeys(topics)), pipeline)
    for settings, topics in read.items():
        yield from _read_only(settings, [topic for topic in topics if topic not in written.get(settings, [])])


def _sink_settings(sink: KafkaSink) -> list[Finding]:
    """Check a sink's settings other than those of its connection; a SKIPPED finding names a topic yet to be created."""
    findings = []
    try:
        try:
            sink.check_connection()
        except ConfigurationError as error:
            findings.append(
                failed("settings", error.message, "correct it: the pipeline's next start is refused", sink.name)
            )
        if sink.topic and sink.create_topic and not cluster_of(sink.settings).partitions_of(sink.topic):
            why = "it does not exist yet; the sink creates it at its start"
            findings.append(skipped(f"topic {sink.topic}", why, sink.name))
    except KafkaError:
        pass  # check_kafka reports it
    return findings


def _read_only(settings: KafkaSettings, topics: Sequence[str]) -> list[Finding]:
    try:
        check_reachable(settings)
    except KafkaError as error:
        return [failed("kafka broker", str(error), "check address, network and security settings")]
    return [finding for topic in topics for finding in check_replication(admin_of(settings).client, topic)]


def _config(admin: AdminClient, kind: Any, name: str) -> dict[str, str | None]:
    resource = ConfigResource(kind, name)
    described = admin.describe_configs([resource], request_timeout=_ANSWER_SECONDS)
    entries: Mapping[str, Any] = described[resource].result()
    return {key: entry.value for key, entry in entries.items()}


_LIMITS: Final = ("transaction.max.timeout.ms", "transactional.id.expiration.ms")
"""Settings of which the least one of all brokers counts: each of them coordinates some of the transactions."""


def _least(admin: AdminClient, brokers: Sequence[int]) -> dict[str, str | None]:
    """Return the brokers' configuration, with the least value of each limit; brokers that do not answer are left out.

    Raises:
        KafkaException: None answers.
    """
    resources = [ConfigResource(ConfigResource.Type.BROKER, str(node)) for node in brokers]
    # librdkafka takes one broker in a request.
    asked = [admin.describe_configs([one], request_timeout=_ANSWER_SECONDS)[one] for one in resources]
    configs, fault = list[dict[str, str | None]](), None
    for future in asked:
        try:
            entries: Mapping[str, Any] = future.result()
        except KafkaException as error:
            fault = error
        else:
            configs.append({key: entry.value for key, entry in entries.items()})
    if not configs:
        raise fault or KafkaException()
    told = {name: [int(value) for facts in configs if (value := facts.get(name))] for name in _LIMITS}
    return {**configs[0], **{name: str(min(values)) for name, values in told.items() if values}}


def _described(admin: AdminClient, topic: str, *, rights: bool = False) -> Any:
    futures = admin.describe_topics(
        TopicCollection([topic]), include_authorized_operations=rights, request_timeout=_ANSWER_SECONDS
    )
    return futures[topic].result()


def _timeout(facts: Mapping[str, str | None]) -> Finding:
    name = "transaction.max.timeout.ms"
    most = int(facts.get(name) or 0)
    if most < _SHORT_TIMEOUT_MS:
        return warning(
            name,
            f"{most} ms",
            "prepared transactions older than this are aborted, and their rows are lost. Raise it on the brokers above "
            "the longest outage of the driver that you must survive (Kafka's default is 15 minutes; a day is common)",
        )
    return ok(name, f"{most / 60000:.0f} min: the longest outage of the driver that prepared data survives")


def _replication(admin: AdminClient, facts: Mapping[str, str | None], brokers: int) -> list[Finding]:
    """Check the replication of the transaction log; before the first transaction, the brokers' defaults for it."""
    replicas = int(facts.get("transaction.state.log.replication.factor") or 0)
    in_sync = int(facts.get("transaction.state.log.min.isr") or 0)
    try:
        replicas = min(len(partition.replicas) for partition in _described(admin, _TRANSACTION_LOG).partitions)
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
    """Check for transactions under onceward's names that hold readers back, and may be close to their timeout."""
    name = "open transactions"
    client = cluster_of(settings).transactions
    try:
        ids = client.list_transactions(["Ongoing"], prefix=f"{FORMAT}:")
        handles = [
            description.open.handle
            for description in describe_listed(client, ids).values()
            if description.open is not None
        ]
    except KafkaError as error:
        return skipped(name, str(error))
    oldest = max((time.time() - handle.started_ms / 1000 for handle in handles), default=0.0)
    text = f"{len(handles) or 'none'} under onceward's names" + (f", the oldest {oldest:.0f} s old" if handles else "")
    if oldest > int(facts.get("transaction.max.timeout.ms") or 0) / 2000:
        advice = "they block readers until they expire. Restart their pipelines, or see `onceward txn list`"
        return warning(name, text, advice)
    return ok(name, text)


def _transaction_log(admin: AdminClient) -> Finding:
    """Check whether this client sees that a part of the transactions is missing in a list of them."""
    try:
        _described(admin, _TRANSACTION_LOG)
    except KafkaException as error:
        if error.args[0].name() == "TOPIC_AUTHORIZATION_FAILED":
            return failed(
                f"topic {_TRANSACTION_LOG}",
                "no permission to Describe (to see whether a list of transactions is complete)",
                "grant it: without it, a start is refused",
            )
        if error.args[0].name() != "UNKNOWN_TOPIC_OR_PART":  # it is made with the first transaction
            return skipped(f"topic {_TRANSACTION_LOG}", str(error.args[0].str()))
    return ok(f"topic {_TRANSACTION_LOG}", "may Describe")


def _others(settings: KafkaSettings, topics: Sequence[str]) -> Iterator[Finding]:
    """Check for open transactions of other applications in these topics: they hold readers back like any other."""
    if not topics:
        return
    client = cluster_of(settings).transactions
    try:
        named = {one.producer: one for one in open_elsewhere(client)}
        own = client.list_transactions(["Ongoing"], prefix=f"{FORMAT}:")
        described = describe_listed(client, own).values()
    except KafkaError as error:
        yield skipped("other applications", str(error))
        return
    ours = {description.open.producer for description in described if description.open is not None}
    inside = client.describe_producers(client.partitions_of(topics))
    for (topic, number), open_ in sorted(inside.items()):
        for producer in sorted((open_ or {}).keys() - ours):
            one = named.get(producer_words(producer))
            age = f", open for {time.time() - one.started:.0f} s" if one is not None and one.started else ""
            name = f" {one.name}" if one is not None else ", whose transactional id this client may not describe"
            yield warning(
                "other applications",
                f"partition {number}: an open transaction of {producer_words(producer)}{name}{age}",
                "readers with read_committed wait for its end, and so does what onceward writes after it. Look for the "
                "application; Kafka ends the transaction after its timeout, and `kafka-transactions abort` at once",
                topic,
            )


_ON_TOPIC: Final = {
    AclOperation.WRITE: "to send",
    AclOperation.DESCRIBE: "to find partitions",
    AclOperation.READ: "to ask partitions for open transactions; sources read",
}


def _topic(admin: AdminClient, topic: str) -> Finding:
    check = f"topic {topic}"
    try:
        described = _described(admin, topic, rights=True)
    except KafkaException as error:
        return failed(check, str(error.args[0].str()), "create it, or grant Describe on it")
    granted = described.authorized_operations
    missing = [f"{op.name.capitalize()} ({why})" for op, why in _ON_TOPIC.items() if op not in granted]
    if missing:
        why = ", ".join(missing)
        return failed(check, f"{len(described.partitions)} partitions, no permission to {why}", "grant it")
    return ok(check, f"{len(described.partitions)} partitions; may read and write")


def check_replication(admin: AdminClient, topic: str) -> list[Finding]:
    """Check whether the loss of a broker can lose acknowledged records of a topic."""
    check = "replication"
    try:
        described = _described(admin, topic)
        config = _config(admin, ConfigResource.Type.TOPIC, topic)
    except KafkaException as error:
        return [skipped(check, str(error.args[0].str()), topic)]
    replicas = min(len(partition.replicas) for partition in described.partitions)
    in_sync = int(config.get("min.insync.replicas") or 1)
    unclean = config.get("unclean.leader.election.enable") == "true"
    text = f"replicas {replicas}, min.insync.replicas {in_sync}, unclean.leader.election.enable {str(unclean).lower()}"
    if replicas >= _SAFE_REPLICAS and in_sync >= _SAFE_IN_SYNC and not unclean:
        return [ok(check, text, topic)]
    advice = (
        f"losing a broker can lose committed records. In production, use {_SAFE_REPLICAS} replicas, "
        f"min.insync.replicas {_SAFE_IN_SYNC} and no unclean leader election; writers wait for all replicas in sync "
        "(acks=all)"
    )
    return [warning(check, text, advice, topic)]


def _consumers(settings: KafkaSettings, topics: Sequence[str]) -> list[Finding]:
    """Check which groups read a topic; one past the last stable offset reads records that may still be aborted."""
    check, admin = "consumers", admin_of(settings)
    try:
        listed = admin.client.list_consumer_groups(request_timeout=_ANSWER_SECONDS).result()
        groups = sorted(group.group_id for group in listed.valid)[:_MOST_GROUPS]
        read = {group: _positions(admin, group, set(topics)) for group in groups}
        partitions = {partition for offsets in read.values() for partition in offsets}
        [stable] = Lookup(settings.connection(), committed=True, retry_seconds=0).offsets(
            dict.fromkeys(partitions, LATEST)
        )
    except KafkaException as error:
        return [skipped(check, str(error.args[0].str()))]
    except SourceError as error:
        return [skipped(check, str(error))]
    findings = []
    for topic in topics:
        readers = [group for group, offsets in read.items() if any(at.topic == topic for at in offsets)]
        ahead = [
            group
            for group in readers
            if any(offset > stable[at] for at, offset in read[group].items() if at.topic == topic)
        ]
        findings.append(_readers(check, topic, readers, ahead))
    return findings


def _readers(check: str, topic: str, readers: Sequence[str], ahead: Sequence[str]) -> Finding:
    if ahead:
        return warning(
            check,
            f"{', '.join(ahead)} read beyond the last stable offset: rows that may still be aborted",
            "set isolation.level=read_committed in these consumers",
            topic,
        )
    if readers:
        text = f"{', '.join(readers)}; brokers do not report isolation.level, which must be read_committed in each"
        return skipped(check, text, topic)
    return ok(check, "no consumer group has stored offsets; each needs isolation.level=read_committed", topic)


def _positions(admin: Admin, group: str, topics: set[str]) -> Offsets:
    groups = [ConsumerGroupTopicPartitions(group)]

    def positions(client: AdminClient) -> Any:
        answers = client.list_consumer_group_offsets(groups, request_timeout=GROUP_SECONDS, require_stable=False)
        return answers[group].result()

    stored = admin.ask_coordinator(positions).topic_partitions
    return {Partition(at.topic, at.partition): at.offset for at in stored if at.topic in topics and at.offset >= 0}


def _cluster(admin: AdminClient) -> Finding:
    check = "cluster permissions"
    future = admin.describe_cluster(include_authorized_operations=True, request_timeout=_ANSWER_SECONDS)
    try:
        described: Any = future.result()
    except KafkaException as error:
        return failed(check, str(error.args[0].str()), "check address, network and security settings")
    if AclOperation.ALTER not in described.authorized_operations:
        return warning(
            check,
            "no permission to Alter",
            "grant it (before Kafka 3.8: ClusterAction), so that markers that a coordinator left out (KAFKA-20734) are "
            "written automatically",
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
