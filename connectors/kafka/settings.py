"""Kafka settings: checked once, then handed to both clients.

Names are librdkafka's. Data goes through librdkafka (confluent-kafka), which gets every setting as it was given.
Commits go through kafka-python, so whatever decides where to connect and who we are must reach it, too: TRANSLATED and
SECURITY name what does, and other security settings are refused. A KafkaSettings is picklable, hashable and shows no
secret.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from onceward.core.errors import ConfigurationError
from onceward.core.kit.secrets import HIDDEN, is_secret_name, shown_address, without_logins

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .security import TokenSource

PREFIX: Final = "kafka."
CONNECTION_OPTIONS: Final = ("kafka.bootstrap.servers", "kafka.*")
"""Options of a Spark format that `split_options` takes."""
PROTOCOLS: Final = ("PLAINTEXT", "SASL_PLAINTEXT", "SASL_SSL", "SSL")
MECHANISMS: Final = ("OAUTHBEARER", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

TRANSLATED: Final = {
    "bootstrap.servers": "bootstrap_servers",
    "client.id": "client_id",
    "client.dns.lookup": "client_dns_lookup",
    "socket.timeout.ms": "request_timeout_ms",
    "socket.connection.setup.timeout.ms": "socket_connection_setup_timeout_ms",
    "reconnect.backoff.ms": "reconnect_backoff_ms",
    "reconnect.backoff.max.ms": "reconnect_backoff_max_ms",
    "metadata.max.age.ms": "metadata_max_age_ms",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
}
"""What kafka-python gets as it is, and under which name."""

TOKENS: Final = frozenset(
    {
        "oauth_cb",
        "sasl.oauthbearer.method",
        "sasl.oauthbearer.client.id",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.scope",
        "sasl.oauthbearer.extensions",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.oauthbearer.grant.type",
        "sasl.oauthbearer.config",
        "enable.sasl.oauthbearer.unsecure.jwt",
        "https.ca.location",
        "https.ca.pem",
    }
)
"""What security.TokenSource makes tokens of, for both clients."""

SECURITY: Final = TOKENS | {
    "security.protocol",
    "sasl.mechanism",
    "sasl.username",
    "sasl.password",
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.key.location",
    "ssl.key.pem",
    "ssl.key.password",
    "ssl.crl.location",
    "ssl.cipher.suites",
    "ssl.endpoint.identification.algorithm",
    "enable.ssl.certificate.verification",
}
SECURITY_PREFIXES: Final = ("ssl", "sasl.", "security.", "enable.ssl.", "enable.sasl.", "https.", "oauth")

ALIASES: Final = {
    "metadata.broker.list": "bootstrap.servers",
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
}

_STORES = (
    "neither client reads Java key stores: convert it to PEM files and give ssl.ca.location, "
    "ssl.certificate.location and ssl.key.location"
)
_FORMAT = "records are bytes here; convert columns in the query"
_OFFSETS = "offsets are published by the library, after the epoch is completed"
_OURS = "set by the library"
REFUSED: Final = {
    "ssl.keystore.": _STORES,
    "ssl.truststore.": _STORES,
    "sasl.kerberos.": "GSSAPI is not supported by both clients: use SCRAM, PLAIN or OAUTHBEARER",
    "sasl.login.callback.handler.class": "a class of the Java client: use oauth_cb",
    "transactional.id": "made by the library: a name that two writers share loses data",
    "allow.auto.create.topics": (
        "no topic is made by writing to it or reading from it; create_topic=True (createTopic) makes the sink's topic"
    ),
    "delivery.report.only.error": _OURS,
    "on_delivery": _OURS,
    "dr_cb": _OURS,
    "key.": _FORMAT,
    "value.": _FORMAT,
    "interceptor.classes": "a setting of the Java client",
    "enable.auto.commit": _OFFSETS,
    "auto.commit.": _OFFSETS,
    "enable.auto.offset.store": "positions are kept by the library",
    "auto.offset.reset": "set startingOffsets; a later gap is data loss, see failOnDataLoss",
    "enable.partition.eof": _OURS,
}
"""Beginnings of names that are refused, and why."""

_ALL_REPLICAS = (("-1", "all"), "a transaction needs all in-sync replicas")
MUST_BE: Final = {
    "acks": _ALL_REPLICAS,
    "request.required.acks": _ALL_REPLICAS,
    "enable.idempotence": (("true",), "a transaction needs an idempotent producer"),
    "isolation.level": (("read_committed", "read_uncommitted"), "it is not a value that Kafka knows"),
    "security.protocol": (PROTOCOLS, "it is not a value that Kafka knows"),
    "sasl.oauthbearer.method": (("default", "oidc"), "it is not a value that librdkafka knows"),
    "sasl.oauthbearer.grant.type": (("client_credentials",), "no other value is passed to both clients"),
}

_SECRETS: Final = frozenset({"sasl.oauthbearer.config", "ssl.key.pem"})
"""Besides those that are called so."""
_LAST_PORT: Final = 65535
_SERVER = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[^\s:/@\[\]]+):([0-9]{1,5})")
_JAAS = re.compile(r"""(username|password)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)')""")


class KafkaSettings:
    """Settings of one cluster, for all clients of this library.

    Args:
        bootstrap_servers: Comma-separated `host:port`, or a list of them.
        config: Settings under librdkafka's names, with or without `kafka.` in front. None stands for the default, as
            in confluent-kafka.

    Raises:
        ConfigurationError: A setting is refused; the message names it and says why.
    """

    __slots__ = ("_values",)

    def __init__(
        self, bootstrap_servers: str | list[str] | None = None, config: Mapping[str, Any] | None = None
    ) -> None:
        values = {_plain_name(name): value for name, value in (config or {}).items() if value is not None}
        if bootstrap_servers is not None:
            servers = bootstrap_servers if isinstance(bootstrap_servers, str) else ",".join(bootstrap_servers)
            values["bootstrap.servers"] = servers
        if not values.get("bootstrap.servers"):
            raise ConfigurationError("bootstrap_servers (kafka.bootstrap.servers) is missing")
        self._values = {name: value if callable(value) else _text(value) for name, value in values.items()}
        _check_servers(self._values["bootstrap.servers"])
        _read_jaas(self._values)
        for name, value in self._values.items():
            _check(name, value)
        if self.protocol.startswith("SASL"):
            self._check_login()

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a setting under librdkafka's name."""
        return self._values.get(name, default)

    def connection(self) -> KafkaSettings:
        """Return only the settings that decide where to connect and as whom."""
        return self.without(*(self._values.keys() - TRANSLATED.keys() - SECURITY))

    def without(self, *names: str) -> KafkaSettings:
        """Return the same settings without some."""
        settings = object.__new__(KafkaSettings)
        settings._values = {name: value for name, value in self._values.items() if name not in names}
        return settings

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KafkaSettings) and self._values == other._values

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        shown = {
            name: HIDDEN if name in _SECRETS or is_secret_name(name) else value
            for name, value in sorted(self._values.items())
        }
        return without_logins(f"KafkaSettings({shown})")

    def for_librdkafka(self) -> dict[str, Any]:
        """Return the configuration of a client of confluent-kafka; librdkafka ignores settings of other clients."""
        config = {name: value for name, value in self._values.items() if name not in TOKENS}
        if self.mechanism == "OAUTHBEARER":
            config["oauth_cb"] = self._token_source().for_librdkafka
        return {"client.id": "onceward", **config}

    def for_wire(self) -> dict[str, Any]:
        """Return the configuration of kafka-python's connections; a token source, if any, is under `token_source`."""
        config: dict[str, Any] = {"client_id": "onceward", "security_protocol": self.protocol}
        config |= {TRANSLATED[n]: _number(v, n) for n, v in self._values.items() if n in TRANSLATED}
        if self.protocol.endswith("SSL"):
            from .security import tls_context  # noqa: PLC0415

            config["ssl_context"] = tls_context(self._values)
        if self.mechanism:
            config["sasl_mechanism"] = self.mechanism
        if self.mechanism.startswith("SCRAM"):  # as librdkafka does, and kafka-python does not (RFC 5802, section 5.1)
            user = str(config["sasl_plain_username"])
            config["sasl_plain_username"] = user.replace("=", "=3D").replace(",", "=2C")
        if self.mechanism == "OAUTHBEARER":
            config["token_source"] = self._token_source()
        return config

    @property
    def protocol(self) -> str:
        """security.protocol, in capitals."""
        return str(self.get("security.protocol", "PLAINTEXT")).upper()

    @property
    def mechanism(self) -> str:
        """sasl.mechanism, in capitals; empty without SASL."""
        return str(self.get("sasl.mechanism", "")).upper() if self.protocol.startswith("SASL") else ""

    def _token_source(self) -> TokenSource:
        from .security import TokenSource  # noqa: PLC0415 - a client of HTTP, which most processes do without

        return TokenSource(self._values)

    def _check_login(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise ConfigurationError(
                f"Kafka setting sasl.mechanism={self.mechanism or '(none)'} is refused: what reaches both clients is "
                f"{', '.join(MECHANISMS)}"
            )
        if self.mechanism == "OAUTHBEARER":
            self._token_source()
        elif not {"sasl.username", "sasl.password"} <= self._values.keys():
            raise ConfigurationError(f"sasl.mechanism {self.mechanism} needs sasl.username and sasl.password")


def split_options(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Split the options of a Spark format into Kafka settings (without `kafka.`) and the rest."""
    settings = {name.removeprefix(PREFIX): value for name, value in options.items() if name.startswith(PREFIX)}
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
    """Refuse an address other than `host:port`: librdkafka would silently try port 9092, or 0."""
    for server in text.split(","):
        match = _SERVER.fullmatch(server.strip())
        if match is None or not 0 < int(match[1]) <= _LAST_PORT:
            shown = shown_address(text if "@" in text else server.strip())  # a comma may be a password's
            raise ConfigurationError(
                f"{shown!r} in bootstrap_servers (kafka.bootstrap.servers) is not host:port; separate several "
                "with commas"
            )


def _read_jaas(values: dict[str, Any]) -> None:
    """Take user name and password out of the Java client's `sasl.jaas.config`."""
    jaas = values.pop("sasl.jaas.config", None)
    if jaas is None:
        return
    options = {name: re.sub(r"\\(.)", r"\1", double or single) for name, double, single in _JAAS.findall(jaas)}
    if set(options) != {"username", "password"}:
        raise ConfigurationError(
            "sasl.jaas.config holds no username and password: give sasl.username and sasl.password"
        )
    for name, value in options.items():
        values.setdefault(f"sasl.{name}", value)


def _check(name: str, value: Any) -> None:
    if isinstance(value, str) and not value.strip():  # as an unset variable of a template leaves it
        advice = " ('none' turns the check off)" if name == "ssl.endpoint.identification.algorithm" else ""
        raise ConfigurationError(f"Kafka setting {name} is empty: give it a value{advice}, or leave it out")
    why = next((why for start, why in REFUSED.items() if name.startswith(start)), None)
    if why is None and name not in SECURITY and name.startswith(SECURITY_PREFIXES):
        why = (
            "both clients may not know it, and the commits would go over connections that ignore it. "
            f"Known are {', '.join(sorted(SECURITY))}"
        )
    if why is not None:
        raise ConfigurationError(f"Kafka setting {name} is refused: {why}")
    allowed, why = MUST_BE.get(name, ((), ""))
    if allowed and str(value).lower() not in (choice.lower() for choice in allowed):
        raise ConfigurationError(f"Kafka setting {name}={value} is refused: {why}. Allowed: {', '.join(allowed)}")
