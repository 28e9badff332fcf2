"""A healthy run logs one line when it starts and one for each epoch, with fields, and recovery is no warning."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys

import pytest

from onceward import AbortStatus, JsonFormatter
from onceward.core.contract.events import EpochFailed, log
from onceward.core.errors import ConfigurationError
from onceward.core.kit.json_logs import show_if_asked

from .coordinator_kit import Bench, about
from .sink_kit import TargetSink

ALWAYS = {"pipeline", "epoch", "milliseconds"}


def fields(record: logging.LogRecord) -> dict[str, object]:
    line = json.loads(JsonFormatter().format(record))
    return {name: value for name, value in line.items() if name not in {"time", "level", "logger", "message"}}


@pytest.fixture(autouse=True)
def informed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "onceward")


def test_each_epoch_logs_one_line_with_its_rows(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    coordinator = bench.opened()
    caplog.clear()
    for epoch in range(3):
        bench.run(coordinator, epoch)
    assert [record.levelno for record in caplog.records] == [logging.INFO] * 3
    assert caplog.records[2].getMessage().startswith("epoch 2 of pipeline p completed: a 1 rows in 1 transactions, ")
    expected = {"pipeline": "p", "epoch": 2, "rows": 1, "sinks": {"a": 1}, "transactions": 1}
    assert fields(caplog.records[2]).items() >= expected.items()
    assert fields(caplog.records[2]).keys() == {*expected, "milliseconds", "commit_milliseconds"}


def test_a_start_logs_what_was_finished_and_aborted_and_nothing_reads_like_a_fault(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    first = bench.opened()
    bench.run(first, 0)
    decided, forgotten = bench.committable(first, 1), bench.committable(first, 1, subtask=1)
    first.writer.decide(1, [decided], sinks=["a"], epoch_input=about(1))
    bench.sink.target.hold(forgotten)
    caplog.clear()
    bench.opened()
    assert {record.levelno for record in caplog.records} == {logging.INFO}
    assert [record.getMessage().partition(",")[0] for record in caplog.records] == [
        "finishing epoch 1",
        "pipeline p starts after epoch 1",
    ]
    start = fields(caplog.records[-1])
    assert start["finished"] == [decided.transaction]
    assert start["aborted"] == [forgotten.transaction]
    assert start.keys() == ALWAYS | {"log", "store", "finished", "aborted"}


def test_a_warning_names_its_transaction_in_fields(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(TargetSink(name="a"))
    left = bench.committable(bench.opened(), 0)
    bench.sink.target.hold(left)
    bench.sink.abort_answer = AbortStatus.RETRY_LATER
    caplog.clear()
    bench.opened()
    [warning] = [record for record in caplog.records if record.levelno == logging.WARNING]
    expected = {"pipeline": "p", "sink": "a", "epoch": 0, "transaction": left.transaction, "rows": left.rows}
    assert fields(warning) == expected


def test_a_record_is_one_line_of_json_with_the_traceback_in_it() -> None:
    error = ValueError("two\nlines")
    record = logging.LogRecord("onceward.x", logging.ERROR, "", 1, "it %s", ("failed",), (type(error), error, None))
    text = JsonFormatter().format(record)
    assert "\n" not in text
    line = json.loads(text)
    assert (line["level"], line["logger"], line["message"]) == ("ERROR", "onceward.x", "it failed")
    assert line["traceback"].endswith("ValueError: two\nlines")


SHOWN = """
import logging, sys
from onceward.core.kit.json_logs import show_if_asked
show_if_asked()
logging.getLogger("onceward.x").info("hello", extra={"epoch": 3})
logging.getLogger("onceward.x").warning("careful") if len(sys.argv) > 1 else None
"""


@pytest.mark.parametrize(
    ("asked", "shown"),
    [("", ""), ("warning", ""), ("info", " INFO hello\n"), ("INFO,json", '"message": "hello", "epoch": 3}\n')],
)
def test_a_process_that_nobody_configures_shows_what_the_environment_asks_for(asked: str, shown: str) -> None:
    command = [sys.executable, "-c", SHOWN]
    done = subprocess.run(
        command, env={**os.environ, "ONCEWARD_LOG": asked}, capture_output=True, text=True, check=True
    )
    assert done.stderr.endswith(shown)
    assert bool(done.stderr) is bool(shown)


def test_a_process_that_nobody_configures_shows_warnings() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ONCEWARD_LOG"}
    command = [sys.executable, "-c", SHOWN, "warn"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stderr.endswith(" WARNING careful\n")
    assert done.stderr.count("\n") == 1


def test_what_the_environment_asks_for_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setenv("ONCEWARD_LOG", "loud")
    with pytest.raises(ConfigurationError, match="ONCEWARD_LOG=loud is not a level such as INFO"):
        show_if_asked()


def test_a_failure_outside_of_an_epoch_is_an_error_and_one_that_is_tried_again_is_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The engine says itself that it starts again: an alert that rings for that would be switched off."""
    log(EpochFailed("p", None, "records are lost", again=True))
    assert not caplog.records
    log(EpochFailed("p", None, "records are lost"))
    log(EpochFailed("p", 7, "no such table"))
    told = [(one.levelname, one.name, one.getMessage()) for one in caplog.records]
    assert told == [
        ("ERROR", "onceward.coordinator", "pipeline p failed: records are lost"),
        ("ERROR", "onceward.spark", "epoch 7 of pipeline p failed: no such table"),
    ]
