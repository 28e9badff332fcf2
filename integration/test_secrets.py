"""A secret in the settings of a sink or source is in nothing that a query shows or leaves behind."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import psycopg
import pytest
import s3fs
from confluent_kafka.admin import AdminClient, NewTopic
from tests.http_kit import Inbox

from onceward.testing.machine import free_port
from onceward.testing.services import KafkaServer

from .certificates import SECRET as KEY_PASSWORD
from .certificates import make_certificates
from .redis_kit import running_valkey
from .s3_kit import S3Server
from .secrets_commands import Commands
from .token_endpoint import token_endpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]
DRIVER = Path(__file__).with_name("secrets_driver.py")
MODULES = "org.apache.kafka.common.security"
PASSWORD, TOKEN, HEADER, WRONG = "kafka-ge%heim", "bearer-ge/heim", "header-geheim", "wrong-geheim"
REDIS, CLIENT, CLAIM, BUCKET_KEY = "redis:ge@heim/%", "client-ge/heim%", "token-geheim", "bucket-ge/heim+%"
ALL = ["postgres", "kafka", "kafka-tokens", "http", "redis"]


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
        "listener.name.secure.sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
        "listener.name.secure.plain.sasl.jaas.config": (
            f'{MODULES}.plain.PlainLoginModule required user_alice="{PASSWORD}";'
        ),
        "listener.name.secure.oauthbearer.sasl.jaas.config": (
            f'{MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
        ),
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


def token_settings(folder: Path, endpoint: str, secret: str = CLIENT) -> dict[str, str]:
    login = {"client.id": "alice", "client.secret": secret, "token.endpoint.url": endpoint}
    tokens = {f"sasl.oauthbearer.{name}": value for name, value in {"method": "oidc", **login}.items()}
    plain = kafka_settings(folder)
    return {name: value for name, value in plain.items() if name[:5] != "sasl."} | {
        "sasl.mechanism": "OAUTHBEARER",
        **tokens,
    }


class Places(NamedTuple):
    """Where the systems are."""

    dsn: str
    broker: tuple[str, Path]
    http: str = ""
    redis: str = ""
    endpoint: str = ""
    s3: str = ""
    """Address of the server."""


def settings(places: Places, folder: Path) -> dict[str, Any]:
    dsn, (servers, certificates), http, redis, endpoint, s3 = places
    config, nowhere = kafka_settings(certificates), "127.0.0.1:1"
    with_tokens = token_settings(certificates, endpoint)
    sql = dsn.replace("postgresql:", "postgresql+psycopg:")
    kafka = {"bootstrap_servers": servers, "topic": "words", "config": config}
    web = {"folder": str(folder / "http"), "url": http, "token": TOKEN, "headers": {"X-Api-Key": HEADER}}
    cache = {"folder": str(folder / "redis"), "url": redis, "key": "words"}
    as_options, tokens_as_options = (
        {f"kafka.{name}": value for name, value in {"bootstrap.servers": servers, **one}.items()}
        for one in (config, with_tokens)
    )
    return {
        "sinks": {
            "postgres": {"dsn": dsn, "table": "words", "select": ["id", "word"]},
            "kafka": {**kafka, "select": ["value"]},
            "kafka-tokens": {**kafka, "config": with_tokens, "select": ["value"]},
            "http": web,
            "redis": cache,
        },
        "formats": {
            "postgres": {"dsn": dsn, "dbtable": "words"},
            "kafka": {**as_options, "topic": "words"},
            "kafka-tokens": {**tokens_as_options, "topic": "words"},
            "http": {"folder": web["folder"], "url": http, "token": TOKEN, "header.X-Api-Key": HEADER},
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
            "kafka tokens": {**kafka, "config": token_settings(certificates, endpoint, WRONG)},
            "kafka tokens away": {**kafka, "config": token_settings(certificates, f"http://{nowhere}/token")},
            "kafka tokens' address": {
                **kafka,
                "config": token_settings(certificates, endpoint.replace("://", f"://alice:{WRONG}@")),
            },
            "http away": {**web, "url": f"http://{nowhere}/"},
            "redis": {**cache, "url": redis.replace("@", f"{WRONG}@")},
            "redis away": {**cache, "url": f"redis://:{WRONG}@{nowhere}/0"},
        },
        "malformed": {
            "postgres with a slash": {"dsn": f"postgresql://u:first/{WRONG}@127.0.0.1:1/x", "table": "words"},
            "postgres with an @": {"dsn": f"postgresql://u:first@{WRONG}@127.0.0.1:1", "table": "words"},
            "kafka with a login": {**kafka, "bootstrap_servers": f"u:{WRONG}@{nowhere}"},
            "redis with a slash": {**cache, "url": f"redis://:first/{WRONG}@{nowhere}/0"},
        },
        "bucket": "s3://logs/secrets",
        "refused_stores": {
            "database": [sql.replace("@", f"{WRONG}@"), {}],
            "database away": [f"postgresql+psycopg://u:{WRONG}@{nowhere}/d", {}],
            "mariadb away": [f"mariadb+pymysql://u:{WRONG}@{nowhere}/d", {}],
            "database with an @": [f"postgresql+psycopg://u:first@{WRONG}@{nowhere}/d", {}],
            "bucket": ["s3://logs/refused", {"secret": WRONG}],
            "bucket away": ["s3://logs/refused", {"endpoint_url": f"http://{nowhere}"}],
            "bucket with a login": [f"s3://dev:{WRONG}/@logs/refused", {"endpoint_url": s3}],
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
        pytest.param("exactly_once", ["postgres"], marks=pytest.mark.nightly),
        ("format", ["postgres"]),
        ("engine", ALL),
        pytest.param("exactly_once", ALL, marks=pytest.mark.nightly),
        pytest.param("format", ALL, marks=pytest.mark.nightly),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_a_secret_is_in_no_log_plan_event_checkpoint_error_metric_process_page_or_target(  # noqa: PLR0917
    how: str,
    systems: list[str],
    dsn: str,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
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
        endpoint = stack.enter_context(token_endpoint("alice", CLIENT, "alice", CLAIM))
        s3 = request.getfixturevalue("bucket") if how == "engine" else None
        address = s3.options["endpoint_url"] if s3 is not None else ""
        given = settings(Places(dsn, broker, inbox.url, redis, endpoint, address), tmp_path)
        environment = {**driver_environment, **(in_environment(s3) if s3 is not None else {})}
        for part in ("sinks", "formats"):
            given[part] = {kind: given[part][kind] for kind in systems}
        done = subprocess.run(
            [sys.executable, DRIVER, how, tmp_path],
            input=json.dumps(given),
            env={**environment, "ONCEWARD_LOG": "DEBUG"},
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        places = {"output": done.stdout + done.stderr}
        if s3 is not None:
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
            places |= Commands(tmp_path, tmp_path_factory.mktemp("elsewhere"), given, environment).said()
            places |= objects(s3)
            assert {name: text[-900:] for name, text in places.items() if text.startswith("UNEXPECTED")} == {}
    secrets = [database, PASSWORD, KEY_PASSWORD, TOKEN, HEADER, REDIS, CLIENT, CLAIM, BUCKET_KEY, WRONG]
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
    refused = sum(len(given[part]) for part in ("refused", "malformed", "refused_stores")) if how == "engine" else 0
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


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server(tmp_path_factory.mktemp("s3"), BUCKET_KEY)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def in_environment(s3: S3Server) -> dict[str, str]:
    """How a user tells processes what fsspec needs."""
    return {f"FSSPEC_S3_{name.upper()}": s3.options[name] for name in ("key", "secret", "endpoint_url")}


def objects(s3: S3Server) -> dict[str, str]:
    """All that is in the bucket, the folder of the embedded engine's checkpoints included."""
    files = s3fs.S3FileSystem(**s3.options, skip_instance_cache=True)
    found = {f"object {name}": files.cat_file(name).decode(errors="replace") for name in files.find("logs/secrets")}
    assert {"state", "secrets-bucket"} <= {name.split("/")[2] for name in found}
    return found
