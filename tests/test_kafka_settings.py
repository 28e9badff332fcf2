"""Settings: what reaches which client, what is refused, and that secrets stay hidden."""

import http.server
import json
import logging
import pickle
import re
import ssl
import subprocess
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from onceward import KafkaSink, KafkaSource
from onceward.connectors.kafka.admin import make_client
from onceward.connectors.kafka.security import TokenSource
from onceward.connectors.kafka.settings import REFUSED, SECURITY, TRANSLATED, KafkaSettings, split_options
from onceward.core.errors import ConfigurationError, KafkaError

PAGE = Path(__file__).resolve().parent.parent / "docs" / "kafka-settings.md"
DOCUMENTED = dict(re.findall(r"^\| `([^`]+)` \| ([^|]+) \|", PAGE.read_text(), re.MULTILINE))
"""Each setting of the documentation, and where it goes."""
OF_PRODUCERS = {
    "acks": "all",
    "compression.type": "lz4",
    "delivery.timeout.ms": "3000",
    "enable.idempotence": "true",
    "linger.ms": "5",
    "partitioner": "murmur2_random",
    "queue.buffering.max.kbytes": "10000",
    "retries": "3",
    "transaction.timeout.ms": "60000",
}
OF_CONSUMERS = {
    "check.crcs": "true",
    "client.rack": "a",
    "fetch.wait.max.ms": "3",
    "group.id": "g",
    "isolation.level": "read_committed",
    "max.partition.fetch.bytes": "10000",
    "queued.min.messages": "3",
}
SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512"}
USER = {"sasl.username": "alice", "sasl.password": "wonder-land"}


def settings(**config):
    return KafkaSettings("broker:9092", {name.replace("_", "."): value for name, value in config.items()})


def test_the_documentation_lists_all_that_reaches_both_clients():
    both = {name for name, goes in DOCUMENTED.items() if goes == "both clients"}
    assert both == TRANSLATED.keys() | SECURITY | {"sasl.jaas.config"}
    assert all(any(name.startswith(start) for name in DOCUMENTED) for start in REFUSED)


def test_none_stands_for_the_default_as_in_confluent_kafka():
    assert settings(sasl_password=None, linger_ms=None) == settings()
    with pytest.raises(ConfigurationError, match=r"PLAIN needs sasl\.username and sasl\.password"):
        KafkaSettings("b:1", {**SASL, **USER, "sasl.mechanism": "PLAIN", "sasl.password": None})
    given = {"isolation.level": None}
    assert (
        KafkaSource(bootstrap_servers="b:1", topics=["t"], config=given).settings["isolation.level"] == "read_committed"
    )
    KafkaSink("k", bootstrap_servers="b:1", config={"transaction.timeout.ms": None})


def test_the_password_reaches_both_clients_and_nobody_else():
    made = KafkaSettings("broker:9092", {**SASL, **USER})
    assert made.for_librdkafka()["sasl.password"] == "wonder-land"
    assert made.for_wire()["sasl_plain_password"] == "wonder-land"
    assert made.for_wire()["sasl_mechanism"] == "SCRAM-SHA-512"
    assert "wonder-land" not in repr(made)
    assert "wonder-land" not in str(made)


def test_spark_spelling_is_understood():
    given, rest = split_options({"kafka.bootstrap.servers": "a:1,b:2", "kafka.linger.ms": "7", "topic": "t"})
    assert rest == {"topic": "t"}
    made = KafkaSettings(None, given)
    assert made.for_librdkafka()["bootstrap.servers"] == "a:1,b:2"
    assert made.for_wire()["bootstrap_servers"] == "a:1,b:2"


def test_names_may_keep_their_prefix_and_servers_may_be_a_list():
    made = KafkaSettings(["a:1", "b:2"], {"kafka.client.id": "me"})
    assert made["bootstrap.servers"] == "a:1,b:2"
    assert made.for_wire()["client_id"] == made.for_librdkafka()["client.id"] == "me"


def test_the_java_clients_login_line_is_read():
    line = """org.apache.kafka.common.security.plain.PlainLoginModule required username="al ice" password="a\\"b=c" ;"""
    made = KafkaSettings("b:1", {"security.protocol": "sasl_ssl", "sasl.mechanism": "plain", "sasl.jaas.config": line})
    assert made["sasl.username"] == "al ice"
    assert made["sasl.password"] == 'a"b=c'
    assert "sasl.jaas.config" not in made.for_librdkafka()


def test_settings_of_producers_and_consumers_make_no_other_connection():
    made = settings(linger_ms=5, group_id="g", client_id="me")
    assert made.for_librdkafka().items() >= {"linger.ms": "5", "group.id": "g"}.items()
    assert made.connection() == settings(client_id="me")


@pytest.mark.parametrize("client", [Producer, Consumer, AdminClient])
def test_librdkafka_ignores_settings_of_its_other_clients(client):
    made = KafkaSettings("127.0.0.1:1", {**OF_PRODUCERS, **OF_CONSUMERS})
    client({**made.for_librdkafka(), "log_level": 0})


def test_an_unknown_setting_goes_to_librdkafka_only():
    made = settings(broker_address_family="v4")
    assert made.for_librdkafka()["broker.address.family"] == "v4"
    assert not any("family" in name for name in made.for_wire())


@pytest.mark.parametrize("name", [name for name, goes in DOCUMENTED.items() if goes == "refused"])
def test_what_is_refused_is_named_with_its_reason(name):
    with pytest.raises(ConfigurationError, match=rf"^Kafka setting {re.escape(name)} is refused: .{{9}}") as caught:
        KafkaSettings("b:1", {name: "hush"})
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("name", ["ssl.some.day", "sasl.some.day", "https.some.day", "enable.ssl.some.day", "ssl_ca"])
def test_security_that_is_not_known_to_reach_both_is_refused(name):
    with pytest.raises(ConfigurationError, match=rf"{name}.* Known are .*, sasl\.mechanism, .*ssl\.ca\.location"):
        KafkaSettings("b:1", {name: "1"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("acks", "1"),
        ("request.required.acks", "0"),
        ("enable.idempotence", False),
        ("isolation.level", "none"),
        ("security.protocol", "TLS"),
        ("sasl.oauthbearer.method", "magic"),
    ],
)
def test_what_would_break_the_protocol_is_refused(name, value):
    with pytest.raises(ConfigurationError, match=name):
        KafkaSettings("b:1", {name: value})


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (SASL, "sasl.password"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "GSSAPI"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}, "oauth_cb"),
        ({**SASL, "sasl.jaas.config": "Krb5LoginModule required;"}, "sasl.jaas.config"),
    ],
)
def test_incomplete_security_says_what_is_missing(config, named):
    with pytest.raises(ConfigurationError, match=named):
        KafkaSettings("b:1", config)


@pytest.mark.parametrize(
    "servers", ["localhost", "b:1,c", "b:", "b:nine", "b:0", "b:65536", "http://b:1", ":1", "::1:9092"]
)
def test_an_address_that_is_none_is_refused_before_anybody_waits_for_it(servers):
    with pytest.raises(ConfigurationError, match=r"host:port"):
        KafkaSettings(servers, {})


@pytest.mark.parametrize("servers", ["b:1", "b-1.example.org:9092, 10.0.0.1:9093", "[::1]:9092", ["b:1", "c:2"]])
def test_addresses_are_hosts_with_ports(servers):
    assert KafkaSettings(servers, {})["bootstrap.servers"]


def test_missing_servers_are_said():
    with pytest.raises(ConfigurationError, match=r"bootstrap\.servers"):
        KafkaSettings(None, {})


def test_settings_survive_pickling_and_are_equal_by_value():
    made = KafkaSettings("b:1", {**SASL, **USER})
    again = pickle.loads(pickle.dumps(made))
    assert again == made
    assert hash(again) == hash(made)
    assert again != KafkaSettings("b:1", {**SASL, **USER, "sasl.password": "other"})


def test_verification_can_be_switched_off_for_both():
    made = settings(security_protocol="ssl", enable_ssl_certificate_verification="false")
    context = made.for_wire()["ssl_context"]
    assert context.verify_mode is ssl.CERT_NONE
    assert made.for_librdkafka()["enable.ssl.certificate.verification"] == "false"


def test_host_names_are_checked_unless_switched_off():
    assert settings(security_protocol="ssl").for_wire()["ssl_context"].check_hostname
    off = settings(security_protocol="ssl", ssl_endpoint_identification_algorithm="none").for_wire()["ssl_context"]
    assert not off.check_hostname
    assert off.verify_mode is ssl.CERT_REQUIRED


def test_a_certificate_file_that_is_not_there_is_a_configuration_error(tmp_path):
    made = settings(security_protocol="ssl", ssl_ca_location=str(tmp_path / "none.pem"))
    with pytest.raises(ConfigurationError, match=r"ssl\.ca\.location"):
        made.for_wire()


def tokens(config: str) -> tuple[str, float]:
    return f"token-of-{config}", time.time() + 100


OAUTH = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
OIDC = {
    **OAUTH,
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "id",
    "sasl.oauthbearer.client.secret": "pw",
}


def test_a_function_makes_the_tokens_of_both_clients():
    made = KafkaSettings("b:1", {**OAUTH, "oauth_cb": tokens, "sasl.oauthbearer.config": "me"})
    assert made.for_wire()["token_source"].token().value == "token-of-me"
    assert made.for_librdkafka()["oauth_cb"]("")[0] == "token-of-me"
    assert "sasl.oauthbearer.config" not in made.for_librdkafka()


def test_a_function_may_be_given_by_name():
    made = KafkaSettings("b:1", {**OAUTH, "oauth_cb": "time:time"})
    assert callable(made.for_wire()["token_source"]._make)
    with pytest.raises(ConfigurationError, match="module:function"):
        KafkaSettings("b:1", {**OAUTH, "oauth_cb": "no.such:thing"})


def test_a_token_is_kept_for_most_of_its_life_and_then_replaced(monkeypatch):
    calls = []

    def make(config):
        calls.append(config)
        return f"t{len(calls)}", 1000.0 + 100 * len(calls)

    now = [1000.0]
    monkeypatch.setattr("onceward.connectors.kafka.security.time.time", lambda: now[0])
    source = TokenSource({"oauth_cb": make})
    assert [source.token().value, source.token().value] == ["t1", "t1"]
    now[0] = 1079.0
    assert source.token().value == "t1"
    now[0] = 1081.0
    assert source.token().value == "t2"


def no_token(_):
    raise OSError("the token's file is gone")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (no_token, r"oauth_cb gave no token: OSError: the token's file is gone"),
        (lambda _: ("secret", time.time() - 50), r"expired 5\d s ago.*this machine's clock"),
        (lambda _: (time.time() + 50, "secret"), "it must return the token's text, and when it expires"),
        (lambda _: ("secret",), "oauth_cb gave no token: ValueError: not enough values"),
        (lambda _: None, "oauth_cb gave no token: TypeError"),
    ],
    ids=["raises", "expired", "turned around", "no time", "nothing"],
)
def test_what_is_no_token_is_said_at_once_and_is_no_refused_setting(make, says):
    """librdkafka waits for ten seconds, and says that no token was set."""
    config = KafkaSettings("127.0.0.1:1", {**OAUTH, "oauth_cb": make}).for_librdkafka()
    began = time.monotonic()
    with pytest.raises(KafkaError, match=says) as caught:
        make_client(Producer, config)
    assert time.monotonic() - began < 5
    assert "secret" not in str(caught.value)


class Endpoint(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        form = self.rfile.read(int(self.headers["Content-Length"])).decode()
        body = json.dumps({"access_token": f"{self.headers['Authorization']}|{form}", "expires_in": 60}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format, *args):  # noqa: A002 - its name in the base class
        pass


def test_tokens_come_from_the_endpoint_by_client_credentials():
    with http.server.HTTPServer(("127.0.0.1", 0), Endpoint) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        made = KafkaSettings(
            "b:1",
            {
                **OIDC,
                "sasl.oauthbearer.scope": "kafka",
                "sasl.oauthbearer.token.endpoint.url": f"http://127.0.0.1:{server.server_port}/token",
                "sasl.oauthbearer.extensions": "cluster=a,pool=b",
            },
        )
        token, expires, _, extensions = made.for_librdkafka()["oauth_cb"]("")
        server.shutdown()
    assert token == "Basic aWQ6cHc=|grant_type=client_credentials&scope=kafka"
    assert 0 < expires - time.time() <= 60
    assert extensions == {"cluster": "a", "pool": "b"}


@pytest.mark.parametrize(
    "url",
    ["file:///etc/hostname", "http://idp/token", "http://localhost.evil/", "idp/token", "https:///token", "http://["],
)
def test_a_secret_is_sent_to_an_endpoint_over_tls_alone(url):
    with pytest.raises(ConfigurationError, match="give an https:// URL"):
        KafkaSettings("b:1", {**OIDC, "sasl.oauthbearer.token.endpoint.url": url})
    for fine in ("https://idp/token", "http://localhost:8080/token", "http://[::1]/token"):
        KafkaSettings("b:1", {**OIDC, "sasl.oauthbearer.token.endpoint.url": fine})


@pytest.mark.parametrize(
    ("status", "answer", "why"),
    [
        (200, b"<html>", "Expecting value"),
        (200, b"{}", "its answer holds no access_token"),
        (200, b"[]", "must be integers"),
        (200, b'{"access_token": "t", "expires_in": "soon"}', "could not convert"),
        (401, b"", "401"),
        (302, b"", "302"),
    ],
)
def test_an_answer_of_the_endpoint_without_a_token_is_told(status, answer, why):
    class Other(Endpoint):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def do_GET(self):
            raise AssertionError("followed")

    with http.server.HTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/token?secret=pw"
        made = KafkaSettings("b:1", {**OIDC, "sasl.oauthbearer.token.endpoint.url": url})
        with pytest.raises(KafkaError, match=rf"no token from http://127.0.0.1:\d+/token\?secret=\*\*\*: .*{why}"):
            made.for_librdkafka()["oauth_cb"]("")
        server.shutdown()


def test_an_endpoint_without_credentials_is_refused():
    with pytest.raises(ConfigurationError, match=r"sasl\.oauthbearer\.client\.secret"):
        KafkaSettings("b:1", {**OAUTH, "sasl.oauthbearer.method": "oidc", "sasl.oauthbearer.client.id": "id"})


def test_the_debug_lines_of_kafka_python_show_no_login(caplog):
    from onceward.connectors.kafka import wire  # isort: skip - kafka-python warns where it is imported first
    from kafka.protocol.parser import KafkaProtocol
    from kafka.protocol.sasl import SaslAuthenticateRequest

    caplog.set_level(logging.DEBUG)
    for name in (*wire.CLIENT_LOGGERS, "kafka", "kafka.protocol.parser"):
        caplog.set_level(logging.DEBUG, name)
    login = SaslAuthenticateRequest(version=2, auth_bytes=b"\0alice\0wonder-land")
    parser = KafkaProtocol()
    parser.send_request(login)
    parser.send_bytes()
    logging.getLogger("kafka.net.connection").debug("%s Request %d: %s", "node", 1, login)
    logging.getLogger("kafka.net.connection").debug("something else")
    assert [record.getMessage() for record in caplog.records] == ["something else"]


@pytest.mark.parametrize(
    ("mechanism", "sent"),
    [("SCRAM-SHA-512", "carol=2Cdave=3D1"), ("SCRAM-SHA-256", "carol=2Cdave=3D1"), ("PLAIN", "carol,dave=1")],
)
def test_a_scram_name_with_a_comma_or_an_equals_sign_is_escaped_for_both_clients(mechanism: str, sent: str):
    made = KafkaSettings(
        "b:1",
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": "carol,dave=1",
            "sasl.password": "wonder,land=",
        },
    )
    assert made.for_wire()["sasl_plain_username"] == sent
    assert made.for_wire()["sasl_plain_password"] == "wonder,land="
    assert made.for_librdkafka()["sasl.username"] == "carol,dave=1"  # which escapes it itself


def test_a_locked_key_without_a_password_is_an_error_and_no_question_at_the_terminal(tmp_path: Path):
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-days", "2", "-subj", "/CN=x", "-passout", "pass:secret",
         "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    config = {
        "security.protocol": "SSL",
        "ssl.certificate.location": str(tmp_path / "cert.pem"),
        "ssl.key.location": str(tmp_path / "key.pem"),
    }
    with pytest.raises(ConfigurationError, match=r"the private key is locked: set ssl\.key\.password"):
        KafkaSettings("b:1", config).for_wire()
    assert KafkaSettings("b:1", {**config, "ssl.key.password": "secret"}).for_wire()["ssl_context"]
