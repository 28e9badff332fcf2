"""Can librdkafka reach the brokers, and if not, why: kafka-python does not tell a wrong password from a dead broker."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from onceward.core.kit.processwide import PerProcess

from .codes import Code
from .errors import confluent, kafka_error, made

if TYPE_CHECKING:
    from .settings import KafkaSettings

REACH_SECONDS: Final = 10.0
ATTEMPT_SECONDS: Final = 0.5
REFUSALS: Final = {"_AUTHENTICATION": Code.SASL_AUTHENTICATION_FAILED, "_SSL": Code.TLS_FAILED}
"""Trying again will not help: a wrong password, a certificate that is not trusted."""


class Complaints:
    """What a librdkafka client says of its connections: give it as `error_cb`, and poll the client before you read it.

    Attributes:
        refusal: The error with which the brokers refuse this client, if they do.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.refusal: Any = None
        self._reason = ""
        self._summary = ""

    def __call__(self, error: Any) -> None:
        """The client's callback."""
        if error.name() in REFUSALS:
            self.refusal = error
        if error.name() == "_ALL_BROKERS_DOWN":
            self._summary = error.str()
        else:
            self._reason = error.str()

    @property
    def newest(self) -> str:
        """The newest reason why no broker can be reached; empty if there was none."""
        return self._reason or self._summary


class Admin:
    """An AdminClient of confluent-kafka, and what it complains of.

    Attributes:
        client: The client.
        complaints: Read them after `client.poll(0)`.
        answered: Whether the cluster has ever answered this process.

    Raises:
        ConfigurationError: librdkafka refuses a setting.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        confluent()
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - an extra

        self.complaints = Complaints()
        config = {"log_level": 0, **settings.for_admin(), "error_cb": self.complaints}
        self.client: Any = made(AdminClient, config)
        self.answered = False


def admin_of(settings: KafkaSettings) -> Admin:
    """This process's AdminClient for the cluster; producers' and consumers' own settings make no difference."""
    return _admins.get(settings.connection())


def check_reachable(settings: KafkaSettings, *, seconds: float = REACH_SECONDS) -> None:
    """Connect to any broker.

    Raises:
        ConfigurationError: librdkafka refuses a setting.
        KafkaError: No broker answers within `seconds`, or this client is refused; the message says why.
    """
    admin = Admin(settings)
    deadline = time.monotonic() + seconds
    while True:
        try:
            admin.client.list_topics(timeout=ATTEMPT_SECONDS)
        except confluent().KafkaException as error:
            admin.client.poll(0)
            refusal = admin.complaints.refusal
            if refusal is not None:
                code = REFUSALS[refusal.name()]
                raise kafka_error("the brokers refuse this client", code, refusal.str()) from None
            if time.monotonic() > deadline:
                words, servers = admin.complaints.newest or str(error), settings["bootstrap.servers"]
                raise kafka_error(f"no broker answers at {servers}", Code.NO_ANSWER, words) from None
        else:
            return


_admins: Final[PerProcess[KafkaSettings, Admin]] = PerProcess(Admin)
