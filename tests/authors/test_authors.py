"""Right sinks pass the suite, and each mistake that is planted in them fails the case that is to catch it."""

from __future__ import annotations

import gc
import importlib.util
import inspect
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from onceward.core.errors import LifecycleError, OncewardError
from onceward.testing.conformance import SinkCase, SinkConformance, SinkUnderTest
from onceward.testing.watch import time_limit

from .suites import SUITES
from .table import table

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parent.parent.parent
MISTAKES = tomllib.loads(Path(__file__).with_name("mistakes.toml").read_text())["mistake"]
MOST_SECONDS = 60
KILLS = ("killed_at_each_step", "killed_before_each_line")


def loaded(sink: str, folder: Path, name: str, edits: list[list[str]]) -> ModuleType:
    """Import a sink's module, with edits, under a name that other processes can import."""
    path = ROOT / SUITES[sink][0]
    text = path.read_text()
    for old, new in edits:
        assert text.count(old) >= 1, f"{path.name} does not have the line any more: {old}"
        text = text.replace(old, new)
    file = folder / f"{name}.py"
    file.write_text(text)
    specification = importlib.util.spec_from_file_location(name, file)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return module


def test_the_page_shows_the_table() -> None:
    """`python -m tests.authors` prints it."""
    assert table() in (ROOT / "docs" / "conformance.md").read_text()


class TestShelf(SinkConformance):
    @pytest.fixture
    def sink_under_test(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SinkUnderTest:
        monkeypatch.syspath_prepend(tmp_path)
        return SUITES["shelf"][1](loaded("shelf", tmp_path, "a_right_shelf", []), tmp_path)


class TestLetters(SinkConformance):
    @pytest.fixture
    def sink_under_test(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SinkUnderTest:
        monkeypatch.syspath_prepend(tmp_path)
        return SUITES["letters"][1](loaded("letters", tmp_path, "right_letters", []), tmp_path)


class TestTotals(SinkConformance):
    @pytest.fixture
    def sink_under_test(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SinkUnderTest:
        monkeypatch.syspath_prepend(tmp_path)
        return SUITES["totals"][1](loaded("totals", tmp_path, "right_totals", []), tmp_path)


class TestJournal(SinkConformance):
    @pytest.fixture
    def sink_under_test(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SinkUnderTest:
        monkeypatch.syspath_prepend(tmp_path)
        return SUITES["journal"][1](loaded("journal", tmp_path, "a_right_journal", []), tmp_path)


def _marked(number: int, mistake: dict[str, Any]) -> Any:
    slow = any(part in mistake["case"] for part in KILLS)
    return pytest.param(number, mistake, id=mistake["name"], marks=[pytest.mark.slow] if slow else [])


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("number", "mistake"), [_marked(*one) for one in enumerate(MISTAKES)])
def test_a_mistake_is_caught_by_its_case(
    number: int,
    mistake: dict[str, Any],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    sink = mistake["sink"]
    if mistake["case"] == "the definition of the class":
        with pytest.raises(LifecycleError):
            loaded(sink, tmp_path, f"author_{sink}_{number}", mistake["edits"])
        return
    module = loaded(sink, tmp_path, f"author_{sink}_{number}", mistake["edits"])
    test = getattr(SinkConformance(), mistake["case"])
    options = dict(mistake.get("arguments", {}))
    if "tmp_path_factory" in inspect.signature(test).parameters:
        options["tmp_path_factory"] = tmp_path_factory
    with pytest.raises((AssertionError, pytest.fail.Exception, OncewardError)), time_limit(MOST_SECONDS):
        test(SinkCase(SUITES[sink][1](module, tmp_path)), **options)
    gc.collect()  # a mistake may leave files open
