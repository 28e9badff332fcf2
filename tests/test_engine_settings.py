"""Settings of the engine, out of a TOML file and the environment too; restart strategies, each with settable times."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from onceward.core import CheckpointConfig, RestartStrategy
from onceward.core.errors import ConfigurationError

PAGE = Path(__file__).parent.parent / "docs" / "engine-settings.md"


@pytest.fixture(autouse=True)
def _no_settings_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ONCEWARD_")]:
        monkeypatch.delenv(name)


def toml(folder: Path, text: str) -> Path:
    path = folder / "onceward.toml"
    path.write_text(text)
    return path


def test_a_file_says_when_checkpoints_are_made(tmp_path: Path):
    text = '[checkpoint]\ninterval = 2\nmode = "at-least-once"\non_cancel = "delete"\nretained = 3\n'
    expected = CheckpointConfig(interval=2.0, mode="at-least-once", on_cancel="delete", retained=3)
    assert CheckpointConfig.load(toml(tmp_path, text)) == expected


def test_the_environment_has_the_last_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = toml(tmp_path, "[checkpoint]\ninterval = 2\ntimeout = 5\n")
    monkeypatch.setenv("ONCEWARD_CHECKPOINT_INTERVAL", "0.5")
    monkeypatch.setenv("ONCEWARD_CHECKPOINT_MAX_CONCURRENT", "2")
    assert CheckpointConfig.load(path) == CheckpointConfig(interval=0.5, timeout=5, max_concurrent=2)
    assert CheckpointConfig.load() == CheckpointConfig(interval=0.5, max_concurrent=2)


def test_nothing_said_is_the_default(tmp_path: Path):
    assert CheckpointConfig.load() == CheckpointConfig.load(toml(tmp_path, "")) == CheckpointConfig()
    assert RestartStrategy.load() is None


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[checkpoint]\nintervall = 1\n", r"unknown settings in checkpoint: intervall\. There are interval, timeout"),
        ("[checkpoints]\ninterval = 1\n", r"onceward.toml: checkpoints\. There are checkpoint, restart"),
        ('[checkpoint]\ninterval = "often"\n', "interval"),
        ("[checkpoint]\ninterval = -1\n", "interval=-1"),
        ('[checkpoint]\nmode = "twice"\n', "mode"),
        ("[checkpoint\n", "cannot be read"),
        ("interval = 1\n", "cannot be read"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, text: str, match: str):
    with pytest.raises(ConfigurationError, match=match):
        CheckpointConfig.load(toml(tmp_path, text))


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path):
    with pytest.raises(ConfigurationError, match=r"mistyped.toml cannot be read"):
        CheckpointConfig.load(tmp_path / "mistyped.toml")


def test_an_unknown_variable_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ONCEWARD_CHECKPOINT_INTERVALL", "1")
    with pytest.raises(ConfigurationError, match="intervall"):
        CheckpointConfig.load()


def pauses(strategy: RestartStrategy | None, count: int) -> list[float | None]:
    assert strategy is not None
    restarts = strategy.begin()
    return [restarts(float(n), 0.0) for n in range(count)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('strategy = "none"', [None]),
        ('strategy = "fixed-delay"\nattempts = 2\ndelay = 1', [1.0, 1.0, None]),
        ('strategy = "failure-rate"\nfailures = 1\ninterval = 0.5\ndelay = 3.0', [3.0, 3.0]),
        ('strategy = "exponential-delay"\ninitial = 1\nmost = 3\nfactor = 2\njitter = 0', [1.0, 2.0, 3.0]),
    ],
)
def test_a_file_says_what_happens_after_a_failure(tmp_path: Path, text: str, expected: list[float | None]):
    assert pauses(RestartStrategy.load(toml(tmp_path, f"[restart]\n{text}\n")), len(expected)) == expected


def test_the_environment_names_a_strategy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ONCEWARD_RESTART_STRATEGY", "fixed-delay")
    monkeypatch.setenv("ONCEWARD_RESTART_ATTEMPTS", "1")
    monkeypatch.setenv("ONCEWARD_RESTART_DELAY", "2.5")
    assert pauses(RestartStrategy.load(), 2) == [2.5, None]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('strategy = "hope"', "strategy='hope': give one of none, fixed-delay, failure-rate, exponential-delay"),
        ("attempts = 2", "strategy=None"),
        ('strategy = "none"\nattempts = 2', "unknown settings in restart with strategy none: attempts"),
        ('strategy = "fixed-delay"\nattempts = "many"', "attempts is not a whole number"),
        ('strategy = "fixed-delay"\nattempts = "2.5"', "attempts is not a whole number"),
        ('strategy = "fixed-delay"\nattempts = 2.9', "attempts is not a whole number"),
        ('strategy = "fixed-delay"\nattempts = true', "attempts is not a whole number"),
        ('strategy = "exponential-delay"\nreset_after = "late"', "reset_after is not a number"),
        ('strategy = "fixed-delay"\nattempts = 0', "must be 1 or more"),
        ('strategy = "fixed-delay"\ndelay = nan', "must be 0 or more, not nan"),
        ('strategy = "failure-rate"\ninterval = inf', "more than 0 s, not inf"),
        ('strategy = "exponential-delay"\nfraction = 1', "unknown settings"),
    ],
)
def test_a_strategy_that_makes_no_sense_is_refused(tmp_path: Path, text: str, match: str):
    with pytest.raises(ConfigurationError, match=match):
        RestartStrategy.load(toml(tmp_path, f"[restart]\n{text}\n"))


def test_the_examples_of_the_page_load(tmp_path: Path):
    for block in re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL):
        path = toml(tmp_path, block)
        CheckpointConfig.load(path)
        assert RestartStrategy.load(path) is not None


@pytest.mark.parametrize(
    "values",
    [{"interval": 0}, {"timeout": 0}, {"min_pause": -1}, {"max_concurrent": 0}, {"retained": 0}, {"mode": "twice"}],
)
def test_a_setting_without_sense_is_refused(values: dict[str, Any]):
    with pytest.raises(ValueError, match=next(iter(values))):
        CheckpointConfig(**values)


# Restart strategies


def test_none_never_restarts():
    assert RestartStrategy.none().begin()(0.0, 100.0) is None


def test_fixed_delay_restarts_three_times_after_ten_seconds_by_default():
    failures = RestartStrategy.fixed_delay().begin()
    assert [failures(t, 1.0) for t in range(4)] == [10.0, 10.0, 10.0, None]


def test_fixed_delay_counts_anew_in_each_run():
    strategy = RestartStrategy.fixed_delay(attempts=1, delay=2.0)
    for _ in range(2):
        failures = strategy.begin()
        assert [failures(0.0, 0.0), failures(1.0, 0.0)] == [2.0, None]


def test_failure_rate_allows_three_failures_in_five_minutes_by_default():
    failures = RestartStrategy.failure_rate().begin()
    assert [failures(t, 1.0) for t in (0, 100, 200, 299)] == [10.0, 10.0, 10.0, None]


def test_failure_rate_forgets_failures_that_are_older_than_the_interval():
    failures = RestartStrategy.failure_rate(failures=2, interval=10.0, delay=0.5).begin()
    assert [failures(t, 1.0) for t in (0, 9, 10.0, 18, 20.5)] == [0.5, 0.5, 0.5, None, 0.5]


def test_exponential_delay_grows_to_its_longest_pause_and_never_gives_up():
    failures = RestartStrategy.exponential_delay(jitter=0.0).begin()
    pauses = [failures(0.0, 1.0) for _ in range(15)]
    assert pauses[:4] == [1.0, 1.5, 2.25, 3.375]
    assert pauses[-1] == 60.0


def test_exponential_delay_begins_anew_after_an_attempt_that_ran_long():
    failures = RestartStrategy.exponential_delay(jitter=0.0).begin()
    for _ in range(5):
        failures(0.0, 10.0)
    assert failures(0.0, 3600.0) == 1.0
    assert failures(0.0, 10.0) == 1.5


@pytest.mark.parametrize(("fraction", "pause"), [(0.0, 0.9), (0.5, 1.0), (1.0, 1.1)])
def test_exponential_delay_is_made_longer_or_shorter_by_its_jitter(fraction: float, pause: float):
    failures = RestartStrategy.exponential_delay(fraction=lambda: fraction).begin()
    assert failures(0.0, 1.0) == pytest.approx(pause)


@pytest.mark.parametrize(
    "make",
    [
        lambda: RestartStrategy.fixed_delay(attempts=0),
        lambda: RestartStrategy.fixed_delay(delay=-1),
        lambda: RestartStrategy.failure_rate(failures=0),
        lambda: RestartStrategy.failure_rate(interval=0),
        lambda: RestartStrategy.exponential_delay(initial=5, most=1),
        lambda: RestartStrategy.exponential_delay(factor=0.5),
        lambda: RestartStrategy.exponential_delay(jitter=2),
    ],
)
def test_a_value_without_sense_is_refused(make):
    with pytest.raises(ConfigurationError, match="restart strategy"):
        make()
