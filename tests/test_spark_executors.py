"""What executors lack is named once, with the hosts that lack it, and before START."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import PythonException

import onceward
from onceward import FileSink
from onceward.connectors.files.connector import FilesConnector
from onceward.connectors.spark.session.classic import ClassicSession
from onceward.connectors.spark.write import executors
from onceward.connectors.spark.write.executors import (
    Answer,
    Executors,
    executor_error,
    executors_of,
    probing,
    problem_of,
    sealed,
)
from onceward.core.errors import ConfigurationError, RetryableSinkError
from onceward.core.log.store import EXPLAINING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Cluster:
    """A session whose tasks run here, each with what was pickled for it."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.asked = error, 0

    def range(self, *_: int) -> Cluster:
        return self

    def mapInArrow(self, probe: Callable[[Any], Iterator[Any]], _schema: str) -> Cluster:  # noqa: N802 - Spark's name
        self.probe = cloudpickle.loads(cloudpickle.dumps(probe))
        return self

    def collect(self) -> list[dict[str, Any]]:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return [row for batch in self.probe(()) for row in batch.to_pylist()]


def ask(*sinks: Any, error: Exception | None = None) -> Executors:
    session: Any = SimpleNamespace(master="spark://host:7077", spark=Cluster(error), slots=lambda: 1)
    asked = executors_of(session, sinks)
    assert asked is not None
    return asked


def test_nothing_is_said_of_executors_that_can_write(tmp_path: Path) -> None:
    assert ask(FileSink("files", tmp_path / "out")).problem() is None


def test_another_version_is_named_with_both(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = cloudpickle.loads(cloudpickle.dumps(sealed("rows")))
    assert opened() == "rows"
    monkeypatch.setattr(onceward, "__version__", "9.9.9")
    with pytest.raises(RuntimeError, match=r"onceward is 0\S+ on the driver and 9\.9\.9 there: install the same"):
        opened()
    [answer] = [json.loads(row) for batch in probing(opened)(()) for row in batch.to_pydict()["answer"]]
    error = problem_of([Answer(**answer)])
    assert isinstance(error, ConfigurationError)
    assert "executors differ" not in str(error)


def test_a_module_that_a_sink_needs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_the_driver.py").write_text("class Thing: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    import of_the_driver  # type: ignore[import-not-found]

    opened = sealed(of_the_driver.Thing())
    (tmp_path / "of_the_driver.py").unlink()
    monkeypatch.delitem(__import__("sys").modules, "of_the_driver")
    with pytest.raises(RuntimeError, match="a module that a sink or a function needs"):
        opened()


def test_a_target_that_does_not_answer_there_is_a_fault_that_may_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(_: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(FilesConnector, "reach", closed)
    error = ask(FileSink("files", tmp_path / "out")).problem()
    assert isinstance(error, RetryableSinkError)
    assert re.search(r"which answers the driver \(on \S+: no route to host\).*\[sink files\]", str(error))


def test_each_problem_is_named_once_with_its_hosts() -> None:
    answers = [Answer("b", "too old"), Answer("a", "too old"), Answer("c", ""), Answer("d", "closed", "table")]
    error = problem_of(answers)
    assert isinstance(error, ConfigurationError)
    assert "(on a, b: too old; on d: closed)" in str(error)
    assert problem_of([Answer("a", "")]) is None


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than 3.11", "Python in worker has"),
        ("ModuleNotFoundError: No module named 'pyarrow'\n\n\tat org.apache", "No module named 'pyarrow'"),
        ('java.io.IOException: Cannot run program "/opt/python": error=2', 'Cannot run program "/opt/python"'),
    ],
)
def test_what_spark_says_of_an_interpreter_that_cannot_run_at_all_is_told(said: str, why: str) -> None:
    error = ask(error=PythonException(said)).problem()
    assert isinstance(error, ConfigurationError)
    assert why in str(error)
    assert "org.apache" not in str(error)


def test_a_probe_that_fails_for_another_reason_stops_nothing() -> None:
    assert ask(error=PythonException("Job 3 cancelled because SparkContext was shut down")).problem() is None


def test_executors_are_asked_once_however_often_the_answer_is_needed() -> None:
    cluster = Cluster()
    session: Any = SimpleNamespace(master="spark://host:7077", spark=cluster, slots=lambda: 1)
    asked = executors_of(session, [])
    assert asked is not None
    assert (asked.problem(), asked.problem()) == (None, None)
    assert cluster.asked == 1


def test_a_task_that_finds_out_first_says_the_same_and_other_errors_stay_as_they_are() -> None:
    error = executor_error(
        PythonException(f"Traceback …\nRuntimeError: {executors.MARK}onceward is 2 here and 1 there\n at")
    )
    assert isinstance(error, ConfigurationError)
    assert "onceward is 2 here and 1 there. Nothing was written" in str(error)
    assert executor_error(PythonException("ModuleNotFoundError: No module named 'of_the_user'")) is None
    assert executor_error(ValueError(executors.MARK)) is None


@pytest.mark.parametrize(("master", "asks"), [("local", 0), ("local[2,4]", 0), ("local-cluster[2,1,512]", 1)])
def test_only_executors_of_other_processes_are_asked(master: str, asks: int, tmp_path: Path) -> None:
    session: Any = SimpleNamespace(master=master, spark=Cluster(), slots=lambda: 2)
    asked = executors_of(session, [FileSink("files", tmp_path)])
    assert (asked is not None) == bool(asks)
    if asked is not None:
        assert asked.problem() is None


def test_a_query_that_is_only_explained_asks_nobody() -> None:
    session: Any = SimpleNamespace(master="spark://host:7077", spark=Cluster(), slots=lambda: 2)
    token = EXPLAINING.set(True)
    try:
        assert executors_of(session, []) is None
    finally:
        EXPLAINING.reset(token)


@pytest.mark.parametrize(("free", "slots"), [(1, 1), (40, 40), (0, 2)])
def test_a_cluster_with_one_slot_has_one_writer(free: int, slots: int) -> None:
    """Spark's default parallelism is at least 2 on a cluster; while there is no executor, it is all that is known."""
    scala = SimpleNamespace(
        maxNumConcurrentTasks=lambda profile: free if profile == "default" else None,
        resourceProfileManager=lambda: SimpleNamespace(defaultResourceProfile=lambda: "default"),
    )
    context = SimpleNamespace(getConf=dict, defaultParallelism=2, _jsc=SimpleNamespace(sc=lambda: scala))
    session: Any = SimpleNamespace(sparkContext=context)
    assert ClassicSession(session).slots() == slots
