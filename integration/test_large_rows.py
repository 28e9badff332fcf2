"""Rows of any size go through each sink, and are read back by `verify`, in memory that the largest row bounds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.http_kit import Inbox

from .postgres_kit import fresh_database
from .redis_kit import running_valkey

if TYPE_CHECKING:
    from collections.abc import Callable

    from onceward.testing.services import KafkaServer, PostgresServer

DRIVER = Path(__file__).parent / "large_rows_driver.py"
MEGABYTE = 2**20


def _measured(kind: str, address: str, name: str, rows: int, megabytes: int) -> dict[str, Any]:
    arguments = [kind, address, name, str(rows), str(megabytes * MEGABYTE)]
    environment = {**os.environ, "MALLOC_ARENA_MAX": "2"}
    done = subprocess.run(
        [sys.executable, DRIVER, *arguments], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(kind, rows, megabytes, answer)
    return answer


def _check(answer: dict[str, Any], rows: int, megabytes: int, *, reads: bool = True) -> None:
    assert (answer["outcome"], answer["same"], answer["rows"]) == ("committed", True, rows)
    assert answer["written"] < 150 + 6 * megabytes
    if reads:
        assert answer["read"] < 150 + 6 * megabytes


SIZES = [(12, 20), pytest.param(100, 10, marks=pytest.mark.nightly), pytest.param(20, 50, marks=pytest.mark.nightly)]


@pytest.mark.parametrize(
    ("rows", "megabytes"),
    [*SIZES, pytest.param(230, 10, marks=pytest.mark.nightly)],  # more than 2 GiB in one column
)
@pytest.mark.parametrize("commit", ["prepared", "staging"])
def test_large_rows_reach_postgres_in_bounded_memory(postgres: PostgresServer, commit: str, rows: int, megabytes: int):
    """A fetch of 10,000 rows held 2 GiB and more, and then failed; COPY took 8.4 GB."""
    with fresh_database(postgres) as database:
        database.run("CREATE TABLE large (id bigint, value bytea)")
        _check(_measured(commit, database.dsn, "large", rows, megabytes), rows, megabytes)


@pytest.mark.parametrize(("rows", "megabytes"), SIZES)
def test_large_rows_reach_kafka_in_bounded_memory(
    kafka: KafkaServer, topic: Callable[..., str], rows: int, megabytes: int
):
    name = topic(1, max_message_bytes="100000000")
    answer = _measured("kafka", kafka.bootstrap_servers, name, rows, megabytes)
    _check(answer, rows, megabytes, reads=False)  # what a consumer's fetches take is librdkafka's


@pytest.mark.parametrize(("rows", "megabytes"), SIZES)
def test_large_rows_reach_sqlite_in_bounded_memory(tmp_path: Path, rows: int, megabytes: int):
    _check(_measured("sqlite", str(tmp_path / "db"), "large", rows, megabytes), rows, megabytes)


@pytest.mark.parametrize(("rows", "megabytes"), SIZES)
@pytest.mark.parametrize("format_", ["parquet", "arrow"])
def test_large_rows_reach_files_in_bounded_memory(tmp_path: Path, format_: str, rows: int, megabytes: int):
    answer = _measured(format_, str(tmp_path / "out"), "", rows, megabytes)
    assert answer["outcome"] == "committed"
    assert answer["written"] < 150 + 6 * megabytes


@pytest.mark.parametrize(("rows", "megabytes"), SIZES)
def test_large_rows_reach_a_server_in_bounded_memory(tmp_path: Path, rows: int, megabytes: int):
    """A request was bounded by its number of rows alone."""
    inbox = Inbox()
    with inbox.up():
        answer = _measured("http", inbox.url, str(tmp_path / "log"), rows, megabytes)
    assert answer["outcome"] == "committed"
    assert [len(request.rows) for request in inbox.taken] == [1] * rows
    assert answer["committed"] < 450 + 8 * megabytes  # Base64 in a text, in a body, and in what is sent


@pytest.mark.parametrize(("rows", "megabytes"), SIZES)
def test_large_rows_reach_redis_in_bounded_memory(tmp_path: Path, rows: int, megabytes: int):
    with running_valkey() as valkey:
        answer = _measured("redis", valkey.url, str(tmp_path / "log"), rows, megabytes)
        assert valkey.client().xlen("large") == rows
    assert answer["outcome"] == "committed"
    assert answer["committed"] < 150 + 8 * megabytes


@pytest.mark.parametrize(("rows", "megabytes"), SIZES)
def test_large_rows_pass_through_the_engine_in_bounded_memory(
    postgres: PostgresServer, tmp_path: Path, rows: int, megabytes: int
):
    """From a file through keyed state into a table."""
    with fresh_database(postgres) as database:
        database.run("CREATE TABLE large (id bigint, value bytea)")
        answer = _measured("engine", database.dsn, str(tmp_path), rows, megabytes)
        [(count, distinct, size)] = database.run("SELECT count(*), count(DISTINCT id), sum(length(value)) FROM large")
    assert (count, distinct, size) == (rows, rows, rows * megabytes * MEGABYTE)
    assert answer["committed"] < 300 + 12 * megabytes  # channels, records as Python objects, and the table
