"""Asks a broker whether it serves clients."""

from __future__ import annotations

from onceward.core.errors import ConfigurationError


def broker_answers(bootstrap_servers: str) -> bool:
    """Whether a registered broker answers at this address with the cluster's metadata; waits a second at most."""
    try:
        from confluent_kafka import KafkaException  # noqa: PLC0415 - optional dependency
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError("confluent-kafka is needed: pip install 'onceward[kafka]'") from error
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    try:
        return bool(admin.list_topics(timeout=1).brokers)
    except KafkaException:
        return False
