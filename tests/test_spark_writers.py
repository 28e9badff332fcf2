"""How many tasks write an epoch: what is decided from settings and the epoch's input."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DayTimeIntervalType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from onceward.connectors.spark.session.query_plan import nodes
from onceward.connectors.spark.write.parallelism import (
    arrived_rows,
    checked_writers,
    driver_limit,
    row_size,
    writers_of,
)
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
    ("rows", "row_bytes", "writers", "cheap", "limit"),
    [
        pytest.param(400, 100.0, "auto", True, math.inf, id="few"),
        pytest.param(400, None, "auto", True, 2**27 // 1024, id="of-a-size-that-nobody-knows-each-checked"),
        pytest.param(400, 100_000.0, "auto", True, None, id="large-ones"),
        pytest.param(12_000, 100.0, "auto", True, None, id="many"),
        pytest.param(400, 100.0, "auto", False, None, id="more-may-come-out-than-go-in"),
        pytest.param(400, 100.0, 1, True, None, id="tasks-are-asked-for"),
        pytest.param(400, 100.0, None, True, None, id="all-partitions-are-asked-for"),
    ],
)
def test_few_small_rows_are_for_the_driver(rows, row_bytes, writers, cheap, limit):
    assert driver_limit(writers, kafka(rows), row_bytes, cheap=cheap) == limit


@pytest.mark.parametrize("rows", [504, 1_000, 2_000, 10_000])
def test_rows_that_have_become_larger_are_no_burden_to_the_driver(rows):
    limit = driver_limit("auto", kafka(rows), 1.0, cheap=True)
    assert limit is not None
    assert 2**25 <= max(rows, 1) * limit <= 2**27


def test_the_size_of_a_row_is_that_of_its_values_of_varying_size():
    schema = StructType().add("n", IntegerType()).add("a`b", BinaryType()).add("v", ArrayType(StringType()))
    expected = "0 + coalesce(octet_length(`a``b`), 0) + coalesce(octet_length(cast(`v` AS string)), 0)"
    assert row_size(schema) == expected


@pytest.mark.parametrize(
    "kinds", [{"n": StringType(), "N": StringType()}, {"v": VariantType()}, {"i": DayTimeIntervalType()}]
)
def test_where_spark_cannot_say_how_large_a_row_is_tasks_write(kinds):
    assert row_size(StructType([StructField(name, kind) for name, kind in kinds.items()])) is None


@pytest.mark.parametrize("wrong", [0, -1, True, "many", 1.5])
def test_another_number_of_writers_is_refused(wrong):
    with pytest.raises(ConfigurationError, match="writers must be"):
        checked_writers(wrong)


def test_a_partition_that_is_new_counts_from_its_beginning():
    about = EpochInput(start=['{"orders": {"0": 5}}'], end=['{"orders": {"0": 6, "1": 7}, "new": {"0": 2}}'])
    assert arrived_rows(about) == 10


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
    assert arrived_rows(about) is None


class Node:
    """A node of a logical plan, as py4j shows it."""

    def __init__(self, number: int, *children: Node) -> None:
        self.number = number
        self.children = lambda: SimpleNamespace(size=lambda: len(children), apply=children.__getitem__)


def test_a_plan_of_any_depth_is_walked_from_the_top() -> None:
    assert [node.number for node in nodes(Node(0, Node(1, Node(2)), Node(3, Node(4), Node(5))))] == [0, 1, 2, 3, 4, 5]
    plan = Node(0)
    for number in range(1, 2000):
        plan = Node(number, plan)
    assert [node.number for node in nodes(plan)] == list(reversed(range(2000)))
