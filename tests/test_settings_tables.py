"""The tables of settings in docs/ say what signatures, docstrings and formats say."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

import pytest

import onceward
from onceward.connectors.spark.read import kafka_offsets
from onceward.connectors.spark.session.options import COMMON
from onceward.core.contract.connector import connectors
from onceward.core.errors import ConfigurationError

from .settings_tables import EVERY_SINK, OPTIONS, PAGES, SHARED, filled, options

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SINKS = [each.sink_class().__name__ for each in connectors().values() if each.sink]
OF_FORMATS_ALONE = {"name", "runkey"}
OF_SPARK = {"path", "queryname"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_up_to_date(page: Path) -> None:
    """`python -m tests.settings_tables` writes it."""
    assert page.read_text() == filled(page.read_text()), "run: python -m tests.settings_tables"


def test_whatever_takes_settings_has_a_table() -> None:
    tables = {name for page in PAGES for name in re.findall(r"<!-- settings: (\w+) -->", page.read_text())}
    others = {"CheckpointConfig", EVERY_SINK, "FileSource", "Pipeline", "SequenceSource", "WriteAheadLogSink"}
    assert tables >= {*OPTIONS, *others}
    assert set(OPTIONS) == {*SINKS, "KafkaSource", "exactly_once"}


@pytest.mark.parametrize("name", [*SINKS, "WriteAheadLogSink"])
def test_every_sink_takes_what_all_sinks_take(name: str) -> None:
    assert set(inspect.signature(getattr(onceward, name)).parameters) >= SHARED


@pytest.mark.parametrize("name", SINKS)
def test_the_options_of_a_sink_are_those_that_its_format_takes(name: str) -> None:
    assert _documented(name) <= _taken(getattr(onceward, name).from_options, {})


def test_the_options_of_the_kafka_source_are_those_that_its_format_takes() -> None:
    bounds = {*kafka_offsets.STARTS, *kafka_offsets.ONLY_BATCH, kafka_offsets.STRATEGY}
    taken = _taken(kafka_offsets.stream_source, {"subscribe": "t", "kafka.bootstrap.servers": "localhost:9092"})
    assert _documented("KafkaSource") <= taken | bounds | set(kafka_offsets.SELECTIONS)
    page = next(page.read_text() for page in PAGES if page.name == "kafka-source.md")
    assert [option for option in bounds if f"`{option}`" not in page] == []


def test_the_options_that_all_formats_share_are_those_of_exactly_once_and_two_more() -> None:
    assert {option.lower() for option in _documented("exactly_once")} == COMMON - OF_FORMATS_ALONE - OF_SPARK
    page = next(page.read_text().lower() for page in PAGES if page.name == "exactly-once.md")
    assert [option for option in OF_FORMATS_ALONE if f"| `{option}` |" not in page] == []


def _documented(name: str) -> set[str]:
    return {option for option in options(name).values() if not option.startswith(("kafka.", "header."))}


def _taken(make: Callable[[dict[str, str]], Any], needed: dict[str, str]) -> set[str]:
    with pytest.raises(ConfigurationError, match="unknown options") as refused:
        make({"nonsense": "", **needed})
    return set(str(refused.value).partition(" takes ")[2].split(", "))
