"""How many tasks write an epoch: what is decided from settings and the epoch's input."""

from __future__ import annotations

import json

import pytest

from onceward.connectors.spark.writers import checked_writers, fits_driver, rows_of, writers_of
from onceward.core.errors import ConfigurationError
from onceward.core.log import EpochInput


def kafka(rows: int, partitions: int = 4) -> EpochInput:
    start = {"orders": {str(number): 1000 for number in range(partitions)}}
    end = {"orders": {str(number): 1000 + rows // partitions for number in range(partitions)}}
    return EpochInput(start=[json.dumps(start)], end=[json.dumps(end)])


@pytest.mark.parametrize(
    ("rows", "cheap", "slots", "tasks"),
    [
        pytest.param(400, True, 8, 1, id="few-rows-one-task"),
        pytest.param(2_400, True, 8, 3, id="a-task-for-each-thousand-rows"),
        pytest.param(400, False, 8, 8, id="work-before-writing-is-divided"),
        pytest.param(1_000_000, True, 8, 8, id="no-more-than-can-run-at-once"),
        pytest.param(1_000_000, False, None, None, id="slots-unknown-all-partitions"),
        pytest.param(400, True, None, 1, id="slots-unknown-few-rows"),
    ],
)
def test_an_epoch_is_written_by_no_more_tasks_than_pay(rows, cheap, slots, tasks):
    assert writers_of("auto", slots, kafka(rows), cheap=cheap) == tasks


@pytest.mark.parametrize("writers", [1, 64, None])
def test_what_the_user_says_counts(writers):
    assert writers_of(writers, 8, kafka(400), cheap=True) == writers


@pytest.mark.parametrize(
    ("rows", "row_bytes", "writers", "cheap", "fits"),
    [
        pytest.param(400, 100.0, "auto", True, True, id="few"),
        pytest.param(400, None, "auto", True, False, id="of-a-size-that-nobody-knows"),
        pytest.param(400, 100_000.0, "auto", True, False, id="large-ones"),
        pytest.param(12_000, 100.0, "auto", True, False, id="many"),
        pytest.param(400, 100.0, "auto", False, False, id="more-may-come-out-than-go-in"),
        pytest.param(400, 100.0, 1, True, False, id="tasks-are-asked-for"),
        pytest.param(400, 100.0, None, True, False, id="all-partitions-are-asked-for"),
    ],
)
def test_few_small_rows_are_for_the_driver(rows, row_bytes, writers, cheap, fits):
    assert fits_driver(writers, kafka(rows), row_bytes, cheap=cheap) is fits


@pytest.mark.parametrize("wrong", [0, -1, True, "many", 1.5])
def test_another_number_of_writers_is_refused(wrong):
    with pytest.raises(ConfigurationError, match="writers must be"):
        checked_writers(wrong)


def test_a_partition_that_is_new_counts_from_its_beginning():
    about = EpochInput(start=['{"orders": {"0": 5}}'], end=['{"orders": {"0": 6, "1": 7}, "new": {"0": 2}}'])
    assert rows_of(about) == 10


@pytest.mark.parametrize(
    "about",
    [
        pytest.param(EpochInput(end=['{"orders": {"0": 6}}']), id="the-first-epoch"),
        pytest.param(EpochInput(start=['{"logOffset": 0}'], end=['{"logOffset": 1}']), id="files"),
        pytest.param(EpochInput(start=["-"], end=['{"orders": {"0": 6}}']), id="a-source-that-has-not-begun"),
        pytest.param(EpochInput(start=["7"], end=["8"]), id="a-number"),
        pytest.param(EpochInput(start=['{"o": {"0": 5}}'], end=['{"o": {"0": 6}}', "8"]), id="another-source"),
    ],
)
def test_rows_of_other_sources_are_not_guessed(about):
    assert rows_of(about) is None
