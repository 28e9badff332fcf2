"""Restart strategies, each with settable times."""

from __future__ import annotations

import pytest

from onceward.core import RestartStrategy
from onceward.core.errors import ConfigurationError


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
