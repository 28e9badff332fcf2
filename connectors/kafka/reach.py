"""Can librdkafka reach the brokers, and if not, why: kafka-python does not tell a wrong password from a dead broker."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

from .codes import Code
from .errors import confluent, kafka_error

if TYPE_CHECKING:
    from .settings import KafkaSettings

REACH_SECONDS: Final = 10.0
ATTEMPT_SECONDS: Final = 0.5
REFUSALS: Final = {"_AUTHENTICATION": Code.SASL_AUTHENTICATION_FAILED, "_SSL": Code.TLS_FAILED}
"""Trying again will not help: a wrong password, a certificate that is not trusted."""

_log = logging.getLogger("onceward.kafka")


def check_reachable(settings: KafkaSettings, *, seconds: float = REACH_SECONDS) -> None:
    """Connect to any broker.

    Raises:
        KafkaError: No broker answers within `seconds`, or this client is refused; the message says why.
    """
    kafka = confluent()
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - an extra

    reasons: list[Any] = []
    config: dict[str, Any] = {**settings.for_admin(), "error_cb": reasons.append}
    admin = AdminClient(config, logger=_log)
    deadline = time.monotonic() + seconds
    while True:
        try:
            admin.list_topics(timeout=ATTEMPT_SECONDS)
        except kafka.KafkaException as error:
            admin.poll(0)
            refused = next((reason for reason in reasons if reason.name() in REFUSALS), None)
            if refused is not None:
                raise kafka_error("the brokers refuse this client", REFUSALS[refused.name()], refused.str()) from None
            if time.monotonic() > deadline:
                words = reasons[-1].str() if reasons else str(error)
                servers = settings["bootstrap.servers"]
                raise kafka_error(f"no broker answers at {servers}", Code.NO_ANSWER, words) from None
        else:
            return
