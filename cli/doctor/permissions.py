"""Checks of what a client may do on a Kafka cluster: a missing permission otherwise shows at the first commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin._acl import AclOperation

from onceward.connectors.kafka.cluster import cluster_of
from onceward.connectors.kafka.codes import Code, code_name
from onceward.core.names import check_pipeline_name

from .finding import Finding, failed, ok, warning

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from confluent_kafka.admin import AdminClient

    from onceward.connectors.kafka.settings import KafkaSettings

_ANSWER_SECONDS: Final = 15
_ON_TOPIC: Final = {
    AclOperation.WRITE: "to send",
    AclOperation.DESCRIBE: "to find partitions",
    AclOperation.READ: "to ask partitions for open transactions; sources read",
}


def check_permissions(
    admin: AdminClient, settings: KafkaSettings, topics: Sequence[str], pipeline: str | None
) -> list[Finding]:
    """What KafkaSink needs on these topics, on the cluster, and on the pipeline's transactional ids.

    Args:
        admin: Connected as the client that is asked about.
        settings: The same connection.
        topics: Topics of sinks and sources.
        pipeline: Its name; without it transactional ids are not checked.
    """
    found = [_topic(admin, topic) for topic in topics]
    if topics:
        found.append(_cluster(admin))
    if pipeline is not None:
        found.append(_ids(settings, pipeline))
    return found


def _topic(admin: AdminClient, topic: str) -> Finding:
    check = f"topic {topic}"
    asked = admin.describe_topics(
        TopicCollection([topic]), include_authorized_operations=True, request_timeout=_ANSWER_SECONDS
    )
    try:
        described: Any = asked[topic].result()
    except KafkaException as error:
        return failed(check, str(error.args[0].str()), "create it, or grant Describe on it")
    missing = _missing(described.authorized_operations, _ON_TOPIC)
    if missing:
        why = ", ".join(f"{name} ({_ON_TOPIC[operation]})" for operation, name in missing)
        return failed(check, f"{len(described.partitions)} partitions, no permission to {why}", "grant it")
    return ok(check, f"{len(described.partitions)} partitions; may read and write")


def _cluster(admin: AdminClient) -> Finding:
    check = "cluster permissions"
    asked = admin.describe_cluster(include_authorized_operations=True, request_timeout=_ANSWER_SECONDS)
    try:
        described: Any = asked.result()
    except KafkaException as error:
        return failed(check, str(error.args[0].str()), "check address, network and security settings")
    if _missing(described.authorized_operations, [AclOperation.ALTER]):
        return warning(
            check,
            "no permission to Alter",
            "grant it: markers that a coordinator left out (KAFKA-20734) are then written without a person's help",
        )
    return ok(check, "may Alter")


def _ids(settings: KafkaSettings, pipeline: str) -> Finding:
    """Describe is seen by asking for an id that nobody has; Write only shows when it is used."""
    prefix = f"onceward:1:{check_pipeline_name(pipeline)}:"
    described = cluster_of(settings).transactions.describe([f"{prefix}doctor"])
    code = described[f"{prefix}doctor"].code
    if code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        return failed(
            "transactional ids", f"no permission to Describe {prefix}…", f"grant Describe and Write on prefix {prefix}"
        )
    if code not in (Code.NONE, Code.TRANSACTIONAL_ID_NOT_FOUND):
        return failed("transactional ids", f"not known: {code_name(code)}", "look at the broker, and ask again")
    return ok("transactional ids", f"may Describe {prefix}…")


def _missing(granted: Collection[AclOperation], wanted: Collection[AclOperation]) -> list[tuple[AclOperation, str]]:
    return [(operation, operation.name.capitalize()) for operation in wanted if operation not in granted]
