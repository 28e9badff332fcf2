"""The table of Kafka settings: what is carried to which client, what is refused and why.

Names are librdkafka's. The data goes through librdkafka (confluent-kafka), the commits go through kafka-python; so
whatever decides where to connect and who we are must reach both, or be refused. docs/kafka-settings.md is made from
this table: `python -m onceward.connectors.kafka.settings_table > docs/kafka-settings.md`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from onceward.core.kit.secrets import is_secret_name


class Goes(StrEnum):
    """Where a setting goes."""

    BOTH = "both clients"
    PRODUCER = "producers (librdkafka)"
    CONSUMER = "consumers (librdkafka)"
    NOWHERE = "refused"


class Setting(NamedTuple):
    """One row."""

    name: str
    goes: Goes
    says: str = ""
    """What to know about it, or why it is refused."""
    kafka_python: str = ""
    """kafka-python's name, if the value can be handed over as it is."""
    secret: bool = False


_B, _P, _C, _N = Goes.BOTH, Goes.PRODUCER, Goes.CONSUMER, Goes.NOWHERE
_PEM = "convert it to PEM files and give ssl.ca.location, ssl.certificate.location and ssl.key.location"
_JAVA = f"a setting of the Java client: {_PEM}"
_ONE_SIDE = "only librdkafka knows it: the commits would go over connections that do not obey it"
_KERBEROS = "GSSAPI is not carried to both clients: use SCRAM, PLAIN or OAUTHBEARER"
_FORMAT = "records are bytes here; convert columns in the query"

CONNECTION: Final = (
    Setting("bootstrap.servers", _B, "or metadata.broker.list", "bootstrap_servers"),
    Setting("client.id", _B, "default: onceward", "client_id"),
    Setting("client.dns.lookup", _B, "", "client_dns_lookup"),
    Setting("socket.timeout.ms", _B, "of one request", "request_timeout_ms"),
    Setting("socket.connection.setup.timeout.ms", _B, "", "socket_connection_setup_timeout_ms"),
    Setting("reconnect.backoff.ms", _B, "", "reconnect_backoff_ms"),
    Setting("reconnect.backoff.max.ms", _B, "", "reconnect_backoff_max_ms"),
    Setting("metadata.max.age.ms", _B, "", "metadata_max_age_ms"),
)

SECURITY: Final = (
    Setting("security.protocol", _B, "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"),
    Setting("sasl.mechanism", _B, "or sasl.mechanisms: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER"),
    Setting("sasl.username", _B, "for PLAIN and SCRAM", "sasl_plain_username"),
    Setting("sasl.password", _B, "for PLAIN and SCRAM", "sasl_plain_password", secret=True),
    Setting("sasl.jaas.config", _B, "read for user name and password, as Spark's users have it", secret=True),
    Setting("oauth_cb", _B, "for OAUTHBEARER: a function, or `module:function`, that returns (token, expiry time)"),
    Setting("sasl.oauthbearer.method", _B, "default or oidc"),
    Setting("sasl.oauthbearer.client.id", _B, "oidc; or sasl.oauthbearer.client.credentials.client.id"),
    Setting(
        "sasl.oauthbearer.client.secret",
        _B,
        "oidc; or sasl.oauthbearer.client.credentials.client.secret",
        secret=True,
    ),
    Setting("sasl.oauthbearer.scope", _B, "oidc"),
    Setting("sasl.oauthbearer.extensions", _B, "comma-separated key=value"),
    Setting("sasl.oauthbearer.token.endpoint.url", _B, "oidc"),
    Setting("sasl.oauthbearer.grant.type", _B, "client_credentials only"),
    Setting("https.ca.location", _B, "of the token endpoint"),
    Setting("https.ca.pem", _B, "of the token endpoint"),
    Setting("enable.sasl.oauthbearer.unsecure.jwt", _B, "unsigned tokens, for tests"),
    Setting("sasl.oauthbearer.config", _B, "of unsigned tokens: principal=…", secret=True),
    Setting("ssl.ca.location", _B, "PEM file or folder; default: the system's"),
    Setting("ssl.ca.pem", _B, "the certificates themselves"),
    Setting("ssl.certificate.location", _B, "PEM file with this client's certificate"),
    Setting("ssl.certificate.pem", _B, "the certificate itself"),
    Setting("ssl.key.location", _B, "PEM file with this client's key"),
    Setting("ssl.key.pem", _B, "the key itself", secret=True),
    Setting("ssl.key.password", _B, "of the key", secret=True),
    Setting("ssl.crl.location", _B, "PEM file with revoked certificates"),
    Setting("ssl.cipher.suites", _B, "OpenSSL's spelling, for TLS up to 1.2"),
    Setting("ssl.endpoint.identification.algorithm", _B, "https (default) or none: whether the host name is checked"),
    Setting("enable.ssl.certificate.verification", _B, "default true; false trusts anybody"),
    Setting("ssl.keystore.location", _N, f"PKCS#12 or JKS: {_PEM}"),
    Setting("ssl.keystore.password", _N, f"PKCS#12 or JKS: {_PEM}", secret=True),
    Setting("ssl.keystore.type", _N, _JAVA),
    Setting("ssl.keystore.certificate.chain", _N, f"{_JAVA}; or ssl.certificate.pem"),
    Setting("ssl.keystore.key", _N, f"{_JAVA}; or ssl.key.pem", secret=True),
    Setting("ssl.truststore.location", _N, _JAVA),
    Setting("ssl.truststore.password", _N, _JAVA, secret=True),
    Setting("ssl.truststore.type", _N, _JAVA),
    Setting("ssl.truststore.certificates", _N, f"{_JAVA}; or ssl.ca.pem"),
    Setting("ssl.ca.certificate.stores", _N, _ONE_SIDE),
    Setting("ssl.curves.list", _N, _ONE_SIDE),
    Setting("ssl.sigalgs.list", _N, _ONE_SIDE),
    Setting("ssl.providers", _N, _ONE_SIDE),
    Setting("ssl.engine.location", _N, _ONE_SIDE),
    Setting("ssl.engine.id", _N, _ONE_SIDE),
    Setting("sasl.kerberos.service.name", _N, _KERBEROS),
    Setting("sasl.kerberos.principal", _N, _KERBEROS),
    Setting("sasl.kerberos.keytab", _N, _KERBEROS),
    Setting("sasl.kerberos.kinit.cmd", _N, _KERBEROS),
    Setting("sasl.kerberos.min.time.before.relogin", _N, _KERBEROS),
    Setting("sasl.login.callback.handler.class", _N, "a class of the Java client: use oauth_cb"),
)

PRODUCERS: Final = (
    Setting("transaction.timeout.ms", _P, "same as transaction_timeout; default: as long as the broker allows"),
    Setting("acks", _P, "all, which is the default; or request.required.acks=-1"),
    Setting("enable.idempotence", _P, "true, which is the default"),
    Setting("compression.type", _P, "or compression.codec"),
    Setting("compression.codec", _P),
    Setting("compression.level", _P),
    Setting("linger.ms", _P, "or queue.buffering.max.ms"),
    Setting("queue.buffering.max.ms", _P),
    Setting("batch.size", _P),
    Setting("batch.num.messages", _P),
    Setting("queue.buffering.max.messages", _P),
    Setting("queue.buffering.max.kbytes", _P),
    Setting("message.timeout.ms", _P, "or delivery.timeout.ms; at most the transaction's timeout"),
    Setting("delivery.timeout.ms", _P),
    Setting("request.timeout.ms", _P),
    Setting("request.required.acks", _P),
    Setting("partitioner", _P, "default murmur2_random, which is where Java's producers put a key"),
    Setting("sticky.partitioning.linger.ms", _P),
    Setting("max.in.flight.requests.per.connection", _P, "at most 5"),
    Setting("retries", _P),
    Setting("message.send.max.retries", _P),
    Setting("enable.gapless.guarantee", _P),
    Setting("transactional.id", _N, "made by the library: a name that two writers share loses data"),
    Setting(
        "allow.auto.create.topics",
        _N,
        "no topic is made by writing to it or reading from it; create_topic=True (createTopic) makes the sink's topic",
    ),
    Setting("delivery.report.only.error", _N, "set by the library"),
    Setting("on_delivery", _N, "set by the library"),
    Setting("dr_cb", _N, "set by the library"),
    Setting("key.serializer", _N, _FORMAT),
    Setting("value.serializer", _N, _FORMAT),
    Setting("interceptor.classes", _N, "a setting of the Java client"),
)

CONSUMERS: Final = (
    Setting("group.id", _C, "offsets are published to it after their epoch is completed; never read from it"),
    Setting("isolation.level", _C, "read_committed (default) or read_uncommitted"),
    Setting("fetch.min.bytes", _C),
    Setting("fetch.max.bytes", _C),
    Setting("fetch.wait.max.ms", _C, "or fetch.max.wait.ms"),
    Setting("fetch.message.max.bytes", _C, "or max.partition.fetch.bytes"),
    Setting("max.partition.fetch.bytes", _C),
    Setting("queued.min.messages", _C),
    Setting("queued.max.messages.kbytes", _C),
    Setting("check.crcs", _C),
    Setting("client.rack", _C, "read from the nearest replica"),
    Setting("enable.auto.commit", _N, "offsets are published by the library, after the epoch is completed"),
    Setting("auto.commit.enable", _N, "offsets are published by the library, after the epoch is completed"),
    Setting("auto.commit.interval.ms", _N, "offsets are published by the library, after the epoch is completed"),
    Setting("enable.auto.offset.store", _N, "positions are kept by the library"),
    Setting("auto.offset.reset", _N, "say startingOffsets; a later gap is data loss, see failOnDataLoss"),
    Setting("enable.partition.eof", _N, "set by the library"),
    Setting("key.deserializer", _N, _FORMAT),
    Setting("value.deserializer", _N, _FORMAT),
)

ALIASES: Final = {
    "metadata.broker.list": "bootstrap.servers",
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
}

GROUPS: Final = {
    "Connection": CONNECTION,
    "Security": SECURITY,
    "Producers": PRODUCERS,
    "Consumers": CONSUMERS,
}
TABLE: Final = {setting.name: setting for group in GROUPS.values() for setting in group}

SECURITY_PREFIXES: Final = ("ssl", "sasl.", "security.", "enable.ssl.", "enable.sasl.", "https.", "oauth")

INTRODUCTION: Final = """\
# Kafka settings

This page is generated from connectors/kafka/settings_table.py; a test compares the two.

Use librdkafka's names for settings: `KafkaSink(…, config={"compression.type": "lz4"})`, or options of a Spark format
with the prefix `kafka.`: `.option("kafka.compression.type", "lz4")`. Data goes through librdkafka (confluent-kafka).
Commits, aborts and recovery go through kafka-python, because librdkafka cannot end a transaction that another process
began. All connection and authentication settings are passed to both clients.

A setting that is not in the table goes to librdkafka only. A setting that librdkafka does not know raises a
ConfigurationError on the driver, before anything is read or written. Security settings are stricter: one whose name
begins with `ssl`, `sasl.`, `security.`, `https.`, `oauth`, `enable.ssl.` or `enable.sasl.` and which is not in the
table is refused, because commits would go over connections that ignore it. Passwords, keys and tokens never appear in
messages, logs, reprs or committables.
"""


def goes_to(name: str) -> Goes | None:
    """Where a setting goes; None for one that is not in the table, which goes to librdkafka."""
    known = TABLE.get(name)
    return known.goes if known is not None else None


PERMISSIONS: Final = """\
## Permissions

If the brokers enforce ACLs, a sink's user needs:

| Resource | Operations | For |
|---|---|---|
| each topic written to | Write, Describe | writing |
| each topic written to | Read | asking its partitions whether they have a transaction open, before and after a commit |
| the sink's topic | Create | `create_topic`, where the topic does not exist |
| transactional ids with the prefix `onceward:1:<pipeline>:` | Write, Describe | transactions, recovery |
| transactional ids with the prefix `onceward-accepts:1:<pipeline>:` | Write, Describe | rewinding |
| the cluster | DescribeConfigs | reading transaction.max.timeout.ms; without it Kafka's default is assumed |
| the cluster | Alter | writing markers that a coordinator skipped (KAFKA-20734), rarely needed |
"""


def is_secret(name: str) -> bool:
    """Whether the value of this setting must not be shown."""
    known = TABLE.get(ALIASES.get(name, name))
    return (known is not None and known.secret) or is_secret_name(name)


def as_markdown() -> str:
    """The text of docs/kafka-settings.md."""
    parts = [INTRODUCTION]
    for title, settings in GROUPS.items():
        rows = "\n".join(f"| `{s.name}` | {s.goes} | {s.says} |" for s in settings)
        parts.append(f"## {title}\n\n| Setting | Goes to | |\n|---|---|---|\n{rows}\n")
    return "\n".join([*parts, PERMISSIONS])


if __name__ == "__main__":
    print(as_markdown(), end="")  # noqa: T201 - it writes the page
