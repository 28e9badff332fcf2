"""A secret in the settings of a sink or source is in nothing that a query shows or leaves behind."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.http_kit import Inbox

from onceward.testing.machine import free_port
from onceward.testing.services import KafkaServer

from .certificates import SECRET as KEY_PASSWORD
from .certificates import make_certificates
from .redis_kit import running_valkey

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]
DRIVER = Path(__file__).with_name("secrets_driver.py")
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
PASSWORD, TOKEN, HEADER, WRONG = "kafka-ge%heim", "bearer-ge/heim", "header-geheim", "wrong-geheim"
REDIS = "redis:ge@heim/%"
ALL = ["postgres", "kafka", "http", "redis"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A broker with SASL over TLS, which wants a client's certificate too; and the folder of the certificates."""
    folder = make_certificates(tmp_path_factory.mktemp("certificates"))
    server = KafkaServer(tmp_path_factory.mktemp("secret-broker"))
    plain, controller = server.settings["port"], server.settings["controller_port"]
    port = free_port({plain, controller})
    addresses = f"PLAINTEXT://127.0.0.1:{plain},SECURE://127.0.0.1:{port}"
    server.config = {
        "listeners": f"{addresses},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": addresses,
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "server.both"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        "listener.name.secure.ssl.client.auth": "required",
        "listener.name.secure.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.secure.plain.sasl.jaas.config": f'{MODULE} user_alice="{PASSWORD}";',
    }
    server.start()
    try:
        server.wait_ready()
        admin = AdminClient({"bootstrap.servers": server.bootstrap_servers})
        admin.create_topics([NewTopic("words", 1)])["words"].result()
        yield f"127.0.0.1:{port}", folder
    finally:
        server.delete()


def kafka_settings(folder: Path, password: str = PASSWORD) -> dict[str, str]:
    names = {"ssl.ca.location": "ca.pem", "ssl.certificate.location": "client.pem", "ssl.key.location": "client.locked"}
    files = {name: str(folder / file) for name, file in names.items()}
    login = {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": password}
    return {"security.protocol": "SASL_SSL", **files, "ssl.key.password": KEY_PASSWORD, **login}


def settings(dsn: str, broker: tuple[str, Path], folder: Path, http: str, redis: str) -> dict[str, Any]:
    servers, certificates = broker
    config, nowhere = kafka_settings(certificates), "127.0.0.1:1"
    kafka = {"bootstrap_servers": servers, "topic": "words", "config": config}
    web = {"directory": str(folder / "http"), "url": http, "token": TOKEN, "headers": {"X-Api-Key": HEADER}}
    cache = {"directory": str(folder / "redis"), "url": redis, "key": "words"}
    as_options = {f"kafka.{name}": value for name, value in {"bootstrap.servers": servers, **config}.items()}
    return {
        "sinks": {
            "postgres": {"dsn": dsn, "table": "words", "select": ["id", "word"]},
            "kafka": {**kafka, "select": ["value"]},
            "http": web,
            "redis": cache,
        },
        "formats": {
            "postgres": {"dsn": dsn, "dbtable": "words"},
            "kafka": {**as_options, "topic": "words"},
            "http": {"directory": web["directory"], "url": http, "token": TOKEN, "header.X-Api-Key": HEADER},
            "redis": cache,
        },
        "source": {**as_options, "subscribe": "words", "startingOffsets": "earliest"},
        "engine_source": {"bootstrap_servers": servers, "topics": ["words"], "config": config},
        "refused": {
            "postgres": {"dsn": dsn.replace("@", f"{WRONG}@"), "table": "words"},
            "postgres away": {"dsn": f"host=127.0.0.1 port=1 dbname=d user=u password={WRONG}", "table": "words"},
            "kafka": {**kafka, "config": kafka_settings(certificates, WRONG)},
            "kafka key": {**kafka, "config": {**config, "ssl.key.password": WRONG}},
            "kafka away": {**kafka, "bootstrap_servers": nowhere},
            "http away": {**web, "url": f"http://{nowhere}/"},
            "redis": {**cache, "url": redis.replace("@", f"{WRONG}@")},
            "redis away": {**cache, "url": f"redis://:{WRONG}@{nowhere}/0"},
        },
    }  # fmt: skip


def forms(secret: str) -> set[str]:
    """As text, percent-encoded, escaped as in JSON and in Python, and as Base64 at any offset."""
    raw = secret.encode()
    shifted = {base64.b64encode(b"x" * n + raw).decode()[4 * (n > 0) :].rstrip("=")[:-1] for n in range(3)}
    return {
        secret,
        quote(secret),
        quote(secret, safe=""),
        json.dumps(secret)[1:-1],
        repr(secret)[1:-1],
        raw.hex(),
        *shifted,
    }


@pytest.mark.parametrize(
    ("how", "systems"),
    [
        ("exactly_once", ["postgres"]),
        ("format", ["postgres"]),
        ("engine", ALL),
        pytest.param("exactly_once", ALL, marks=pytest.mark.nightly),
        pytest.param("format", ALL, marks=pytest.mark.nightly),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_a_secret_is_in_no_log_plan_event_checkpoint_error_metric_process_or_target(  # noqa: PLR0917 - fixtures
    how: str,
    systems: list[str],
    dsn: str,
    tmp_path: Path,
    driver_environment: dict[str, str],
    request: pytest.FixtureRequest,
) -> None:
    broker = request.getfixturevalue("broker") if systems == ALL else ("127.0.0.1:1", tmp_path)
    with psycopg.connect(dsn) as connection:
        connection.execute(f"CREATE TABLE words (id bigint, word text{', value text' if how == 'format' else ''})")
    database = str(psycopg.conninfo.conninfo_to_dict(dsn)["password"])
    inbox = Inbox()
    with ExitStack() as stack:
        stack.enter_context(inbox.up())
        valkey = stack.enter_context(running_valkey())
        valkey.client().config_set("requirepass", REDIS)
        redis = valkey.url.replace("//", f"//:{quote(REDIS, safe='')}@")
        given = settings(dsn, broker, tmp_path, inbox.url, redis)
        for part in ("sinks", "formats"):
            given[part] = {kind: given[part][kind] for kind in systems}
        done = subprocess.run(
            [sys.executable, DRIVER, how, tmp_path],
            input=json.dumps(given),
            env={**driver_environment, "ONCEWARD_LOG": "DEBUG"},
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        places = {"output": done.stdout + done.stderr}
        if how == "engine":
            places |= commands(dsn, broker, tmp_path / "log", driver_environment)
    secrets = [database, PASSWORD, KEY_PASSWORD, TOKEN, HEADER, REDIS, WRONG]
    hidden = [form for secret in secrets for form in forms(secret)]
    places |= {str(file): file.read_bytes().decode(errors="replace") for file in tmp_path.rglob("*") if file.is_file()}
    with psycopg.connect(dsn) as look:
        tables = look.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'onceward'").fetchall()
        for (table,) in tables:
            rows = look.execute(f"SELECT coalesce(string_agg(t::text, ''), '') FROM onceward.{table} AS t").fetchone()
            places[f"table {table}"] = str(rows)
    places["deliveries"] = str([request.body for request in inbox.posts])
    shown = [
        (place, line.replace(form, "SECRET")[:300])
        for place, text in places.items()
        for form in hidden
        if form in text
        for line in text.splitlines()
        if form in line
    ]
    assert shown == []
    assert done.returncode == 0, done.stderr[-3000:]
    refused = len(given["refused"]) if how == "engine" else 0
    assert done.stdout.count(" was refused: ") == refused, done.stdout[-3000:]
    assert 'onceward_epochs_completed_total{pipeline="secrets-' in places["output"] or how == "format"
    assert systems != ALL or inbox.posts[-1].headers["x-api-key"] == HEADER
    if how != "engine":
        assert any("/events/" in place for place in places)
        assert "== Physical Plan ==" in places["output"]
    if how != "format":
        assert (
            "wasGeneratedBy" in places[str(tmp_path / "lineage.json")]
            or "outputs" in places[str(tmp_path / "lineage.json")]
        )


def commands(dsn: str, broker: tuple[str, Path], log: Path, environment: dict[str, str]) -> dict[str, str]:
    """What the command line says of the same targets."""
    servers, certificates = broker
    settings_of_kafka = [f"--kafka={name}={value}" for name, value in kafka_settings(certificates).items()]
    where = ["--bootstrap-servers", servers, *settings_of_kafka, "--dsn", dsn]
    store = ["--store", str(log), "--pipeline", "secrets-engine", "--json"]
    found = {}
    for command in (
        ["doctor", *where, "--topic=words", *store],
        ["txn", "list", *where, *store],
        ["checkpoints", *store],
    ):
        program = [sys.executable, "-c", "from onceward.cli.main import main; main()", *command]
        done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode in (0, 1), done.stderr[-2000:]
        assert done.stdout.strip()[0] in "[{", done.stderr[-2000:]
        found[command[0]] = done.stdout + done.stderr
    return found
