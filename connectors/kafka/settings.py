"""Kafka settings: checked once, then handed to both clients.

A KafkaSettings is picklable, hashable and shows no secret. settings_table.py says what goes where.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from onceward.core.errors import ConfigurationError
from onceward.core.kit.secrets import HIDDEN

from .security import TokenSource, tls_context
from .settings_table import ALIASES, CONNECTION, SECURITY_PREFIXES, TABLE, Goes, goes_to, is_secret

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX: Final = "kafka."
PROTOCOLS: Final = frozenset({"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"})
MECHANISMS: Final = frozenset({"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"})
TOKENS: Final = ("oauth_cb", "sasl.oauthbearer.", "enable.sasl.oauthbearer.", "https.")
"""Settings that are used to make tokens here, and not handed to librdkafka."""

LAST_PORT: Final = 65535

_SERVER = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]]+):([0-9]{1,5})")
_JAAS = re.compile(r"""(username|password)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)')""")
_MUST_BE: Final = {
    "acks": ({"all", "-1"}, "a transaction needs all in-sync replicas"),
    "request.required.acks": ({"all", "-1"}, "a transaction needs all in-sync replicas"),
    "enable.idempotence": ({"true"}, "a transaction needs an idempotent producer"),
    "isolation.level": ({"read_committed", "read_uncommitted"}, "Kafka knows no other"),
    "sasl.oauthbearer.method": ({"default", "oidc"}, "librdkafka knows no other"),
    "sasl.oauthbearer.grant.type": ({"client_credentials"}, "no other is carried to both clients"),
}


class KafkaSettings:
    """Settings of one cluster, for all clients of this library.

    Args:
        bootstrap_servers: Comma-separated `host:port`, or a list of them.
        config: Settings under librdkafka's names, with or without `kafka.` in front.

    Raises:
        ConfigurationError: A setting is refused; the message names it and says why.
    """

    __slots__ = ("_values",)

    def __init__(
        self, bootstrap_servers: str | list[str] | None = None, config: Mapping[str, Any] | None = None
    ) -> None:
        values = {_plain_name(name): value for name, value in (config or {}).items()}
        if bootstrap_servers is not None:
            servers = bootstrap_servers if isinstance(bootstrap_servers, str) else ",".join(bootstrap_servers)
            values["bootstrap.servers"] = servers
        if not values.get("bootstrap.servers"):
            raise ConfigurationError("bootstrap_servers (kafka.bootstrap.servers) is missing")
        values = {name: value if callable(value) else _text(value) for name, value in values.items()}
        _check_servers(str(values["bootstrap.servers"]))
        _read_jaas(values)
        for name, value in values.items():
            _check(name, value)
        _check_security(values)
        self._values = values

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Value of a setting under librdkafka's name."""
        return self._values.get(name, default)

    def connection(self) -> KafkaSettings:
        """Only what decides where to connect and who we are."""
        values = {name: value for name, value in self._values.items() if goes_to(name) is Goes.BOTH}
        return self._copy(values)

    def without(self, *names: str) -> KafkaSettings:
        """The same settings, less some."""
        return self._copy({name: value for name, value in self._values.items() if name not in names})

    @classmethod
    def _copy(cls, values: dict[str, Any]) -> KafkaSettings:
        made = object.__new__(cls)
        made._values = values
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KafkaSettings) and self._values == other._values

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        shown = {name: HIDDEN if is_secret(name) else value for name, value in sorted(self._values.items())}
        return f"KafkaSettings({shown})"

    def for_producer(self) -> dict[str, Any]:
        """Configuration of a confluent-kafka Producer, less what a transaction needs."""
        return self._for_librdkafka(Goes.CONSUMER)

    def for_consumer(self) -> dict[str, Any]:
        """Configuration of a confluent-kafka Consumer, less what an assignment needs."""
        return self._for_librdkafka(Goes.PRODUCER)

    def for_admin(self) -> dict[str, Any]:
        """Configuration of a confluent-kafka AdminClient."""
        return self._for_librdkafka(Goes.PRODUCER, Goes.CONSUMER)

    def for_wire(self) -> dict[str, Any]:
        """Configuration of kafka-python's connections; a token source, if any, is under `token_source`."""
        values = self._values
        config: dict[str, Any] = {"client_id": "onceward", "security_protocol": self.protocol}
        for setting in (*CONNECTION, TABLE["sasl.username"], TABLE["sasl.password"]):
            if setting.name in values:
                config[setting.kafka_python] = _number(values[setting.name], setting.name)
        if self.protocol.endswith("SSL"):
            config["ssl_context"] = tls_context(values)
        if self.protocol.startswith("SASL"):
            config["sasl_mechanism"] = self.mechanism
            if self.mechanism == "OAUTHBEARER":
                config["token_source"] = TokenSource(values)
        return config

    @property
    def protocol(self) -> str:
        """security.protocol, in capitals."""
        return str(self._values.get("security.protocol", "PLAINTEXT")).upper()

    @property
    def mechanism(self) -> str:
        """sasl.mechanism, in capitals; empty without SASL."""
        return str(self._values.get("sasl.mechanism", "")).upper() if self.protocol.startswith("SASL") else ""

    def _for_librdkafka(self, *others: Goes) -> dict[str, Any]:
        kept = {n: v for n, v in self._values.items() if not n.startswith(TOKENS) and goes_to(n) not in others}
        config = {"client.id": "onceward", **kept}
        if self.mechanism == "OAUTHBEARER":
            config["oauth_cb"] = TokenSource(self._values).for_librdkafka
        return config


def split_options(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Options of a Spark format as Kafka settings (without `kafka.`) and the rest."""
    settings = {name[len(PREFIX) :]: value for name, value in options.items() if name.startswith(PREFIX)}
    return settings, {name: value for name, value in options.items() if not name.startswith(PREFIX)}


def _plain_name(name: str) -> str:
    name = name.removeprefix(PREFIX).strip()
    return ALIASES.get(name, name)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _number(value: str, name: str) -> Any:
    if not name.endswith(".ms"):
        return value
    try:
        return int(value)
    except ValueError:
        raise ConfigurationError(f"Kafka setting {name} must be a number of milliseconds, not {value!r}") from None


def _check_servers(text: str) -> None:
    """Refuse what is not `host:port`: librdkafka would try port 9092, or 0, and say nothing."""
    for server in text.split(","):
        found = _SERVER.fullmatch(server.strip())
        if found is None or not 0 < int(found[1]) <= LAST_PORT:
            raise ConfigurationError(
                f"{server.strip()!r} in bootstrap_servers (kafka.bootstrap.servers) is not host:port; separate several "
                "with commas"
            )


def _read_jaas(values: dict[str, Any]) -> None:
    """Take user name and password out of the Java client's `sasl.jaas.config`."""
    jaas = values.pop("sasl.jaas.config", None)
    if jaas is None:
        return
    found = {name: re.sub(r"\\(.)", r"\1", double or single) for name, double, single in _JAAS.findall(jaas)}
    if set(found) != {"username", "password"}:
        raise ConfigurationError(
            "sasl.jaas.config holds no username and password: give sasl.username and sasl.password"
        )
    for name, value in found.items():
        values.setdefault(f"sasl.{name}", value)


def _check(name: str, value: Any) -> None:
    setting = TABLE.get(name)
    if setting is None and name.startswith(SECURITY_PREFIXES):
        raise ConfigurationError(
            f"Kafka setting {name} is refused: it is not known to reach both clients, and the commits would go over "
            "connections that do not obey it. See docs/kafka-settings.md"
        )
    if setting is not None and setting.goes is Goes.NOWHERE:
        raise ConfigurationError(f"Kafka setting {name} is refused: {setting.says}")
    allowed, why = _MUST_BE.get(name, (None, ""))
    if allowed is not None and str(value).lower() not in allowed:
        raise ConfigurationError(
            f"Kafka setting {name}={value} is refused: {why}. Allowed: {', '.join(sorted(allowed))}"
        )


def _check_security(values: Mapping[str, Any]) -> None:
    protocol = str(values.get("security.protocol", "PLAINTEXT")).upper()
    if protocol not in PROTOCOLS:
        raise ConfigurationError(
            f"Kafka setting security.protocol={protocol} is unknown: {', '.join(sorted(PROTOCOLS))}"
        )
    if not protocol.startswith("SASL"):
        return
    mechanism = str(values.get("sasl.mechanism", "")).upper()
    if mechanism not in MECHANISMS:
        raise ConfigurationError(
            f"Kafka setting sasl.mechanism={mechanism or '(none)'} is refused: what reaches both clients is "
            f"{', '.join(sorted(MECHANISMS))}"
        )
    if mechanism == "OAUTHBEARER":
        TokenSource(values)
        needed = {"client.id", "client.secret", "token.endpoint.url"}
        missing = sorted(f"sasl.oauthbearer.{n}" for n in needed if f"sasl.oauthbearer.{n}" not in values)
        if values.get("sasl.oauthbearer.method") == "oidc" and "oauth_cb" not in values and missing:
            raise ConfigurationError(f"Kafka settings for OAUTHBEARER are missing: {', '.join(missing)}")
    elif not {"sasl.username", "sasl.password"} <= values.keys():
        raise ConfigurationError(f"sasl.mechanism {mechanism} needs sasl.username and sasl.password")
