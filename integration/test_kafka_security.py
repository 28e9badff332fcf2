"""SASL and TLS: each mechanism carries the data and the commits, and a wrong password is said without showing it."""

import os
import re
import subprocess
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from tests.hostile import TEXTS

from onceward.connectors.kafka.admin import cluster_of
from onceward.connectors.kafka.checks import check_kafka
from onceward.connectors.kafka.settings import KafkaSettings
from onceward.connectors.kafka.sink import KafkaSink
from onceward.core.contract.names import NOTHING
from onceward.core.contract.transaction import AbortStatus, CommitStatus, Observation
from onceward.core.errors import KafkaError, OncewardError
from onceward.testing.machine import free_port
from onceward.testing.services import KafkaServer

from .certificates import SECRET, make_certificates
from .kafka_kit import Bench, eventually, read_all, rows

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
DOCS = Path(__file__).parents[1] / "docs" / "kafka-settings.md"
MODULES = "org.apache.kafka.common.security"


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    """A broker with a listener for SASL, one for TLS and one for both."""
    certificates = make_certificates(tmp_path_factory.mktemp("certificates"))
    server = KafkaServer(tmp_path_factory.mktemp("secured"))
    plain, controller = server.settings["port"], server.settings["controller_port"]
    ports: dict[str, int] = {}
    for name in ("SASL", "TLS", "BOTH"):
        ports[name] = free_port({plain, controller, *ports.values()})
    addresses = [f"PLAINTEXT://127.0.0.1:{plain}", *(f"{name}://127.0.0.1:{port}" for name, port in ports.items())]
    server.config = {
        "listeners": ",".join([*addresses, f"CONTROLLER://127.0.0.1:{controller}"]),
        "advertised.listeners": ",".join(addresses),
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SSL,BOTH:SASL_SSL"
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates / "server.both"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates / "ca.pem"),
        "listener.name.tls.ssl.client.auth": "required",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "super.users": "User:ANONYMOUS",
        **{
            f"listener.name.{name}.{key}": value
            for name in ("sasl", "both")
            for key, value in {
                "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
                "plain.sasl.jaas.config": f'{MODULES}.plain.PlainLoginModule required user_alice="{SECRET}";',
                "scram-sha-256.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required;",
                "scram-sha-512.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required;",
                "oauthbearer.sasl.jaas.config": (
                    f'{MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
                ),
            }.items()
        },
    }
    server.start()
    try:
        server.wait_ready()
        admin = AdminClient({"bootstrap.servers": server.bootstrap_servers})
        for kind in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            wanted = UserScramCredentialUpsertion("alice", ScramCredentialInfo(kind, 4096), SECRET.encode())
            admin.alter_user_scram_credentials([wanted])["alice"].result()
        admin.create_topics([NewTopic("secured", 1)])["secured"].result()
        yield server, {name: f"127.0.0.1:{port}" for name, port in ports.items()}, certificates
    finally:
        server.delete()


ALICE = {"sasl.username": "alice", "sasl.password": SECRET}
UNSIGNED = {"enable.sasl.oauthbearer.unsecure.jwt": "true", "sasl.oauthbearer.config": "principal=alice"}


def tokens(config):
    from onceward.connectors.kafka.security import TokenSource

    return tuple(TokenSource({**UNSIGNED, "sasl.oauthbearer.config": config}).token())


def goes_through(servers, config, plain):
    bench = Bench(servers, "secured", config=config)
    mark = bench.pipeline
    bench.sink.validate(rows("x").schema)
    bench.sink.ledger().check_claim(bench.scope, NOTHING)
    committable = bench.write(rows(mark))
    assert [c.identity() for c in bench.sink.lingering(bench.scope)] == [committable.identity()]
    assert bench.sink.commit(committable).status is CommitStatus.COMMITTED
    assert mark.encode() in [m.value() for m in read_all(plain, "secured")]
    assert SECRET not in repr(bench.sink)


@pytest.mark.parametrize(
    "how",
    [
        {"sasl.mechanism": "PLAIN", **ALICE},
        {"sasl.mechanism": "SCRAM-SHA-256", **ALICE},
        {"sasl.mechanisms": "SCRAM-SHA-512", **ALICE},
        {"sasl.mechanism": "OAUTHBEARER", **UNSIGNED},
        {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": tokens, "sasl.oauthbearer.config": "principal=alice"},
        {
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{MODULES}.plain.PlainLoginModule required username="alice" password="{SECRET}";',
        },
    ],
    ids=["plain", "scram-256", "scram-512", "oauth-unsigned", "oauth-function", "jaas"],
)
def test_sasl_carries_data_and_commits(secured, how):
    server, places, _ = secured
    goes_through(places["SASL"], {"security.protocol": "SASL_PLAINTEXT", **how}, server.bootstrap_servers)


@pytest.mark.parametrize("form", ["files", "texts", "locked key"])
def test_tls_with_a_client_certificate_carries_data_and_commits(secured, form):
    server, places, folder = secured
    names = {"ca": "ca.pem", "certificate": "client.pem", "key": "client.key"}
    if form == "texts":
        config = {f"ssl.{what}.pem": (folder / name).read_text() for what, name in names.items()}
    else:
        config = {f"ssl.{what}.location": str(folder / name) for what, name in names.items()}
    if form == "locked key":
        config |= {"ssl.key.location": str(folder / "client.locked"), "ssl.key.password": SECRET}
    goes_through(places["TLS"], {"security.protocol": "SSL", **config}, server.bootstrap_servers)


@pytest.mark.parametrize("kind", ["JKS", "PKCS12"])
def test_key_stores_that_are_converted_as_documented_carry_data_and_commits(secured, tmp_path, kind):
    server, places, made = secured

    def run(command):
        environment = {**os.environ, "STORE_PASSWORD": SECRET}
        done = subprocess.run(
            ["bash", "-ec", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    run(
        f"openssl pkcs12 -export -in {made}/client.pem -inkey {made}/client.key -passout env:STORE_PASSWORD > c.p12; "
        f"keytool -importkeystore -noprompt -srckeystore c.p12 -srcstorepass:env STORE_PASSWORD "
        f"-destkeystore client.jks -deststoretype {kind} -deststorepass:env STORE_PASSWORD; "
        f"keytool -importcert -noprompt -alias ca -file {made}/ca.pem -keystore truststore.jks -storetype {kind} "
        "-storepass:env STORE_PASSWORD"
    )
    run(re.search(r"### Java key stores.*?```bash\n(.*?)```", DOCS.read_text(), re.DOTALL)[1])
    files = {"ca": "ca.pem", "certificate": "client.pem", "key": "client.key"}
    config = {f"ssl.{what}.location": str(tmp_path / name) for what, name in files.items()}
    config |= {"security.protocol": "SSL", "ssl.key.password": SECRET}
    goes_through(places["TLS"], config, server.bootstrap_servers)


def test_sasl_over_tls_carries_data_and_commits(secured):
    server, places, folder = secured
    config = {"security.protocol": "SASL_SSL", "ssl.ca.location": str(folder / "ca.pem"), "sasl.mechanism": "PLAIN"}
    goes_through(places["BOTH"], {**config, **ALICE}, server.bootstrap_servers)


def test_an_untrusted_broker_is_refused_by_both_unless_switched_off(secured):
    server, places, _ = secured
    config = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", **ALICE}
    with pytest.raises(OncewardError, match=r"TLS_FAILED.*verify failed"):
        KafkaSink("out", bootstrap_servers=places["BOTH"], topic="secured", config=config).validate(rows("x").schema)
    blind = {**config, "enable.ssl.certificate.verification": "false"}
    goes_through(places["BOTH"], blind, server.bootstrap_servers)


def grant(server, *permissions):
    bindings = [
        AclBinding(kind, name, pattern, "User:alice", "*", operation, AclPermissionType.ALLOW)
        for kind, name, pattern, operation in permissions
    ]
    admin = AdminClient({"bootstrap.servers": server.bootstrap_servers})
    for future in admin.create_acls(bindings).values():
        future.result()


def test_the_documented_permissions_are_enough_and_read_is_asked_for(secured):
    server, places, _ = secured
    admin = AdminClient({"bootstrap.servers": server.bootstrap_servers})
    admin.create_topics([NewTopic("guarded", 1)])["guarded"].result()
    config = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", **ALICE}
    bench = Bench(places["SASL"], "guarded", config=config)
    topic = (ResourceType.TOPIC, "guarded", ResourcePatternType.LITERAL)
    ids = (ResourceType.TRANSACTIONAL_ID, f"onceward:1:{bench.pipeline}:", ResourcePatternType.PREFIXED)
    grant(server, *((*what, op) for what in (topic, ids) for op in (AclOperation.WRITE, AclOperation.DESCRIBE)))
    eventually(lambda: "permission to Read" in refused(bench.sink), "refused for want of Read")

    def found(name):
        findings = check_kafka(KafkaSettings(places["SASL"], config), ["guarded", "nowhere"], bench.pipeline)
        [finding] = [f for f in findings if f.check == name]
        return f"{finding.health}: {finding.found}"

    assert found("topic guarded").startswith("failed: 1 partitions, no permission to Read")
    assert found("topic nowhere").startswith("failed")
    assert found("transactional ids").startswith("ok")
    grant(server, (*topic, AclOperation.READ))
    eventually(lambda: refused(bench.sink) == "", "allowed")
    assert found("topic guarded").startswith("ok")
    committable = bench.write(rows("x"))
    assert list(bench.sink.lingering(bench.scope)) != []
    assert bench.sink.commit(committable).status is CommitStatus.COMMITTED
    assert [m.value() for m in read_all(server.bootstrap_servers, "guarded")] == [b"x"]


ACLS = re.compile(
    r"^\| (each topic written to|the topic `__transaction_state`|the sink's topic|"
    r"transactional ids .*`(.+):<pipeline>:`|the cluster) \| (.+?) \|",
    re.MULTILINE,
)


def documented(topic, pipeline):
    """The permissions of docs/kafka-settings.md, as ACLs, less those to create a topic and for a rewind."""
    section = DOCS.read_text().partition("## Permissions")[2]
    literal, prefixed = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
    for resource, prefix, operations in ACLS.findall(section):
        where = (ResourceType.TOPIC, topic, literal)
        if prefix:
            where = (ResourceType.TRANSACTIONAL_ID, f"{prefix}:{pipeline}:", prefixed)
        elif resource == "the topic `__transaction_state`":
            where = (ResourceType.TOPIC, "__transaction_state", literal)
        elif resource == "the cluster":
            where = (ResourceType.BROKER, "kafka-cluster", literal)
        for operation in operations.split(", "):
            yield (*where, AclOperation[re.sub("(?<=[a-z])(?=[A-Z])", "_", operation).upper()])


def bindings(permissions, user):
    allow = AclPermissionType.ALLOW
    return [AclBinding(kind, name, pattern, user, "*", op, allow) for kind, name, pattern, op in permissions]


WITHOUT = {
    "TOPIC WRITE": "no permission to Write to topic",
    "TOPIC READ": "no permission to Read topic",
    "TRANSACTIONAL_ID WRITE": "TRANSACTIONAL_ID_AUTHORIZATION_FAILED|[Tt]ransactional.* authorization failed",
    "TRANSACTIONAL_ID DESCRIBE": "",  # Write implies it
    "TOPIC DESCRIBE": "",  # Write and Read imply it
    "TOPIC DESCRIBE_CONFIGS": "",  # a batch that is refused is written again
    "TOPIC DESCRIBE of __transaction_state": "no permission to Describe topic __transaction_state",
    "TOPIC CREATE": "Create|TOPIC_AUTHORIZATION_FAILED|[Aa]uthorization failed",
    "BROKER DESCRIBE_CONFIGS": "",  # Kafka's default is assumed
    "BROKER ALTER": "",  # for markers that a coordinator skipped
}


def test_exactly_the_documented_permissions_are_enough_and_each_is_needed(secured):
    """A resource without any ACL would be open to everybody here, so somebody else has one on each."""
    server, places, _ = secured
    admin = AdminClient({"bootstrap.servers": server.bootstrap_servers})
    wanted = UserScramCredentialUpsertion(
        "bob", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), SECRET.encode()
    )
    admin.alter_user_scram_credentials([wanted])["bob"].result()
    config = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "bob"}
    seen = set()
    for number, without in enumerate(["", *WITHOUT]):
        topic = f"exactly-{number}"
        bench = Bench(places["SASL"], topic, config={**config, "sasl.password": SECRET}, create_topic=True)
        all_of_them = list(documented(topic, bench.pipeline))
        seen |= set(map(words, all_of_them))
        granted = [one for one in all_of_them if words(one) != without]
        made = bindings(all_of_them, "User:nobody") + bindings(granted, "User:bob")
        for future in admin.create_acls(made).values():
            future.result()
        try:
            says = WITHOUT.get(without, "")
            if says:
                with pytest.raises(OncewardError, match=says):
                    whole_run(bench)
            else:
                whole_run(bench)
                values = [message.value() for message in read_all(server.bootstrap_servers, topic)]
                assert values == [b"decided"], without
        finally:
            for future in admin.delete_acls([filter_of(binding) for binding in made]).values():
                future.result()
    assert seen == set(WITHOUT)


def words(permission):
    kind, name, _, operation = permission
    return f"{kind.name} {operation.name}" + (f" of {name}" if name.startswith("__") else "")


def filter_of(binding):
    fields = (binding.restype, binding.name, binding.resource_pattern_type, binding.principal, binding.host)
    return AclBindingFilter(*fields, binding.operation, binding.permission_type)


def whole_run(bench):
    """A writer dies before the decision, another one after it; then a third one sweeps, commits, and rewinds."""
    sink = bench.sink
    deadline = time.monotonic() + 1  # the brokers hear of ACLs a moment after the controller
    while refused(sink) and time.monotonic() < deadline:
        time.sleep(0.1)
    sink.validate(rows("x").schema)
    sink.ledger().check_claim(bench.scope, NOTHING)
    bench.write(rows("undecided"), subtask=1)
    decided = bench.write(rows("decided"))
    for found in list(sink.lingering(bench.scope)):
        if found.transaction != decided.transaction:
            assert sink.abort(found).status is AbortStatus.ABORTED
    assert sink.commit(decided).status is CommitStatus.COMMITTED
    assert list(sink.inspect_many([decided])) == [Observation.COMMITTED]
    sink.ledger().release(bench.scope)


def refused(sink):
    try:
        sink.validate(rows("x").schema)
    except OncewardError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_wrong_password_is_said_at_once_and_not_shown(secured, mechanism):
    _, places, _ = secured
    wrong = {"sasl.username": "alice", "sasl.password": "not-so-wonderful"}
    config = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, **wrong}
    sink = KafkaSink("out", bootstrap_servers=places["SASL"], topic="secured", config=config)
    began = time.monotonic()
    with pytest.raises(KafkaError, match="SASL_AUTHENTICATION_FAILED") as caught:
        sink.validate(rows("x").schema)
    assert time.monotonic() - began < 8
    assert not caught.value.retryable
    assert "not-so-wonderful" not in str(caught.value)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_scram_name_with_a_comma_and_an_equals_sign_carries_data_and_commits(secured, mechanism):
    server, places, _ = secured
    name, password = "carol,dave=1", "wonder,land="
    kind = ScramMechanism[mechanism.replace("-", "_")]
    user = UserScramCredentialUpsertion(name, ScramCredentialInfo(kind, 4096), password.encode())
    admin = AdminClient({"bootstrap.servers": server.bootstrap_servers})
    admin.alter_user_scram_credentials([user])[name].result()
    login = {"sasl.mechanism": mechanism, "sasl.username": name, "sasl.password": password}
    goes_through(places["SASL"], {"security.protocol": "SASL_PLAINTEXT", **login}, server.bootstrap_servers)


WRONG = {"sasl.username": "alice", "sasl.password": "not-so-wonderful"}
TLS = {"security.protocol": "SSL", "ssl.ca.location": "ca.pem"}
OAUTH = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
CLIENT = {"ssl.certificate.location": "client.pem", "ssl.key.location": "client.locked"}


@pytest.mark.parametrize(
    ("place", "config", "says"),
    [
        ("SASL", {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", **WRONG}, "Invalid username or"),
        ("SASL", {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512", **WRONG}, "invalid creden"),
        ("BOTH", {**TLS, "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", **WRONG}, "Invalid username or"),
        ("SASL", {**OAUTH, "oauth_cb": lambda _: ("x", time.time() - 9)}, "token for OAUTHBEARER expired"),
        ("SASL", {**OAUTH, "oauth_cb": lambda _: ("x", time.time() + 9)}, "invalid_token"),
        ("TLS", {**TLS, **CLIENT}, r"the private key is locked: set ssl\.key\.password"),
        ("TLS", {**TLS, **CLIENT, "ssl.key.password": "x"}, r"cannot be opened with this ssl\.key\.password"),
        ("TLS", TLS, "bad certificate"),
        ("TLS", {}, "listener that expects another security.protocol than PLAINTEXT"),
        ("SASL", {}, "listener that expects another security.protocol than PLAINTEXT"),
        ("BOTH", {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", **WRONG}, "than SASL_PLAINTEXT"),
        ("BOTH", TLS, "listener that expects another security.protocol than SSL"),
        ("SASL", TLS, "PLAINTEXT broker listener|listener that expects another security.protocol than SSL"),
    ],
    ids=["password", "scram", "password over TLS", "expired token", "refused token", "locked key", "key's password",
         "no certificate", "plaintext at TLS", "plaintext at SASL", "SASL at SASL_SSL", "TLS at SASL_SSL",
         "TLS at SASL"],
)  # fmt: skip
def test_each_client_says_why_it_is_refused(secured, place, config, says):
    """librdkafka's when a sink starts, and kafka-python's, which commands and the commit use."""
    _, places, folder = secured
    files = {n: str(folder / v) if n.endswith(".location") else v for n, v in config.items()}
    began = time.monotonic()
    with pytest.raises(OncewardError, match=says):
        KafkaSink("out", bootstrap_servers=places[place], topic="secured", config=files).validate(rows("x").schema)
    for _ in range(3):  # it is no matter of luck
        with pytest.raises(OncewardError, match=says) as caught:
            cluster_of(KafkaSettings(places[place], files)).transactions.within(3).list_transactions()
        assert "not-so-wonderful" not in str(caught.value)
        assert str(caught.value).count("SaslAuthenticationFailedError") == 0
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("text", [*TEXTS, ".", "x" * 250])
def test_hostile_names_of_topics_are_refused_and_make_none(secured, text):
    server, _, _ = secured
    admin = AdminClient({"bootstrap.servers": server.bootstrap_servers})
    before = set(admin.list_topics(timeout=10).topics)
    for more in ({}, {"create_topic": True}) if text != "pg_catalog.pg_class" else ({},):
        with pytest.raises(OncewardError):
            KafkaSink("out", bootstrap_servers=server.bootstrap_servers, topic=text, **more).validate(rows("x").schema)
    assert set(admin.list_topics(timeout=10).topics) == before
