"""A setting is described in one place; signatures, docstrings, options, tables and refusals come from there."""

from __future__ import annotations

import inspect
import pydoc
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from pyspark.sql.types import LongType, StructType

from onceward import FileSink, ForeachBatch, Pipeline, exactly_once
from onceward.connectors.spark.formats.formats import AnyFormat, format_of
from onceward.core.contract.connector import connectors
from onceward.core.contract.pipeline_settings import (
    BATCH,
    DRIVERS,
    ENGINE,
    ENGINE_START,
    EXACTLY_ONCE,
    FOREACH_BATCH,
    FORMAT,
    STREAM,
)
from onceward.core.errors import ConfigurationError
from onceward.core.kit.driver_settings import Driver, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROOT = Path(__file__).parent.parent
TAKEN = {driver.name: set(driver.settings) for driver in (EXACTLY_ONCE, FOREACH_BATCH, ENGINE)} | {
    way: {name for name in FORMAT.settings if not refusal(way, name)} for way in (STREAM, BATCH)
}
OF_STARTS = ENGINE_START.settings.keys() - EXACTLY_ONCE.settings.keys()
"""What is not about a pipeline, but about one start of the engine."""
TAKERS: list[tuple[Driver[Any], Any]] = [
    (EXACTLY_ONCE, exactly_once),
    (FOREACH_BATCH, ForeachBatch),
    (ENGINE, Pipeline),
    (ENGINE_START, Pipeline.start),
    (ENGINE_START, Pipeline.run),
]


@pytest.mark.parametrize("name", sorted(Driver.known.keys() - OF_STARTS))
@pytest.mark.parametrize("driver", DRIVERS)
def test_each_driver_takes_a_setting_or_has_a_reason_not_to(driver: str, name: str) -> None:
    assert (name in TAKEN[driver]) != bool(refusal(driver, name))


@pytest.mark.parametrize(("driver", "taker"), TAKERS, ids=lambda one: getattr(one, "__qualname__", ""))
def test_a_signature_has_each_setting_with_its_type_and_default(driver: Driver[Any], taker: Any) -> None:
    shown = inspect.signature(taker).parameters
    for name, setting in driver.settings.items():
        assert shown[name].default == setting.default
        assert shown[name].annotation == driver.types[name]
        assert shown[name].kind is inspect.Parameter.KEYWORD_ONLY
    assert "settings" not in shown


@pytest.mark.parametrize("driver", [EXACTLY_ONCE, FOREACH_BATCH, ENGINE, ENGINE_START], ids=lambda one: one.name)
def test_help_says_what_each_setting_means(driver: Driver[Any]) -> None:
    [taker, *_] = [taker for one, taker in TAKERS if one is driver]
    text = " ".join(pydoc.plain(pydoc.render_doc(taker)).replace("|", " ").split())
    for name, setting in driver.settings.items():
        assert f" {name}: {setting.meaning}" in text
        assert setting.also.get(driver.name, "") in text


def test_the_engine_says_the_same_of_a_pipelines_name() -> None:
    text = " ".join((inspect.getdoc(Pipeline) or "").split())
    said = text.partition(" name: ")[2].partition(" checkpointing: ")[0]
    assert EXACTLY_ONCE.settings["pipeline"].meaning.startswith(said)


def untyped(taker: Any) -> Any:
    """As type checkers do not see it."""
    return taker


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda sink: untyped(exactly_once)(None, sink), r"exactly_once\(\) missing .* argument: 'pipeline'"),
        (
            lambda sink: untyped(exactly_once)(None, sink, pipeline="p", nonsense=1),
            r"unexpected keyword argument 'nonsense'$",
        ),
        (
            lambda sink: untyped(exactly_once)(None, sink, pipeline="p", run_key="k"),
            "'run_key', which belongs to a batch write",
        ),
        (
            lambda sink: untyped(ForeachBatch)(sink, pipeline="p", take_over=1.0),
            "'take_over', which belongs to exactly_once",
        ),
        (lambda _: untyped(Pipeline)("p", writers=2), "'writers', which belongs to Spark: give parallelism"),
        (lambda _: untyped(Pipeline)("p", rewind="why"), r"'rewind', which is an argument of start\(\) and run\(\)"),
        (
            lambda _: untyped(Pipeline("p", store="/log").start)(writers=2),
            r"Pipeline.start\(\) got an unexpected .* 'writers'$",
        ),
    ],
)
def test_an_argument_that_a_driver_does_not_take_is_a_type_error_with_the_reason(
    call: Callable[[Any], object], words: str
) -> None:
    with pytest.raises(TypeError, match=words):
        call(FileSink("files", "/tmp/out"))


class HasItsOwn(FileSink):
    """A sink with an option that `exactly_once` has, too."""

    option_aliases: ClassVar[Mapping[str, str]] = {}

    def __init__(self, name: str, folder: str, persist: str = "") -> None:
        super().__init__(name, folder)
        self.persist = persist


@pytest.mark.parametrize(("option", "why"), [("writers", "Spark decides how many"), ("dead_letter", "one sink")])
def test_a_format_says_why_it_does_not_take_a_setting(tmp_path: Path, option: str, why: str) -> None:
    made = format_of(connectors()["files"])({"path": str(tmp_path / "out"), option: "2"})
    rows = StructType().add("n", LongType())
    with pytest.raises(ConfigurationError, match=f"a batch write takes no option {option}, which .*{why}"):
        made.writer(rows, overwrite=False)
    with pytest.raises(ConfigurationError, match=f"a streaming query takes no option {option}, which .*{why}"):
        made.streamWriter(rows, overwrite=False)


def test_an_option_of_the_sink_is_the_sinks(tmp_path: Path) -> None:
    options = {"sink": f"{__name__}:HasItsOwn", "name": "n", "folder": str(tmp_path), "persist": "always"}
    sink: Any = AnyFormat(options).writer(StructType().add("n", LongType()), overwrite=False).sink
    assert sink.persist == "always"


WITH_ONE_MORE = """
import importlib.util, inspect, sys
from types import SimpleNamespace

name, entry = "onceward.core.contract.pipeline_settings", 'made_up: Annotated[int, Setting("Something new.", 7)]'
spec = importlib.util.find_spec(name)
source, place = spec.loader.get_source(name), 'The settings of every pipeline.\"""'
assert source.count(place) == 1
module = sys.modules[name] = importlib.util.module_from_spec(spec)
exec(compile(source.replace(place, f"{place}\\n    {entry}"), spec.origin, "exec"), vars(module))

from onceward import FileSink, ForeachBatch, Pipeline, exactly_once
from onceward.connectors.spark.formats.formats import format_of
from onceward.connectors.spark.session.options import FormatOptions
from onceward.connectors.spark.write import handler
from onceward.core.contract.connector import connectors
from onceward.core.errors import ConfigurationError
from tests.settings_tables import table

sink, told = FileSink("files", "/tmp/out"), []
checked = handler.checked_settings
handler.checked_settings = lambda settings, *others: told.append(settings) or checked(settings, *others)
for given in ({}, {"made_up": 8}):
    try:
        exactly_once(SimpleNamespace(isStreaming=True), sink, pipeline="p", **given)
    except AttributeError:  # the frame is none
        pass
assert [settings["made_up"] for settings in told] == [7, 8]
assert ForeachBatch(sink, pipeline="p", made_up=8)._pipeline.make.keywords["settings"]["made_up"] == 8
options = {"path": "/tmp/out", "MADE_UP": "8"}
assert format_of(connectors()["files"])(options).own_sink().folder == "/tmp/out"
assert FormatOptions.parse(options).settings["made_up"] == 8
try:
    FormatOptions.parse({"madeUp": "eight"})
except ConfigurationError as error:
    assert "option madeUp is not a whole number" in str(error)
assert Pipeline("p", store="/tmp/log", made_up=8).settings["made_up"] == 8
for taker in (exactly_once, ForeachBatch, Pipeline):
    assert inspect.signature(taker).parameters["made_up"].default == 7
    assert "made_up: Something new." in inspect.getdoc(taker)
assert "| `made_up` | `madeUp` | `int` | `7` | Something new. |" in table("exactly_once")
assert "| `made_up` | `int` | `7` | Something new. |" in table("ForeachBatch")
assert "| `made_up` | `int` | `7` | Something new. |" in table("Pipeline")
"""


def test_a_new_setting_is_one_entry() -> None:
    """Every driver takes it, the formats read it, and docstrings and tables have it."""
    subprocess.run([sys.executable, "-c", WITH_ONE_MORE], check=True, cwd=ROOT)
