"""Whether the executors can run what the driver sends them: asked before START, and checked again by each task.

Spark reports an executor without onceward as a ModuleNotFoundError from inside its serializer, and one with another
version as whatever breaks first. So what is sent on a cluster says by itself what is wrong where it arrives:

1. A probe runs as a small job of its own, in the background, while Spark plans the query: a few tasks, which Spark
   spreads over the executors that it has, look at Python, onceward, the modules of the sinks, and whether each target
   answers from there. Its result is awaited before START, so a deployment that cannot work drives out no run that does.
2. Only the log's undecided epochs come first: commits need no executor, and what is decided may expire meanwhile.
3. Executors come later than the probe, and a job may have none for a while. So the probe is awaited for a limited time,
   and each task that writes travels as bytes, in a function that is pickled with its code: it compares the versions,
   and only then unpickles the rest, which needs onceward.

On a local master there is nothing to find out that `warn_of_python` has not asked the interpreter itself.
"""

from __future__ import annotations

import functools
import json
import logging
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import onceward
from onceward.core.contract.connector import connector_of
from onceward.core.contract.findings import Finding, Health, failed, ok
from onceward.core.errors import ConfigurationError, OncewardError, RetryableSinkError, SinkError, text_of
from onceward.core.kit.secrets import without_logins
from onceward.core.log.store import EXPLAINING

from ..session.kinds import connect_of, session_of
from ..session.spark_session import spark_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from onceward.core.contract.connector import Connector
    from onceward.sinks import Sink

    from ..session.spark_session import QuerySession

_log = logging.getLogger("onceward.spark")
DEFAULT_PYTHON: Final = "python3"
"""Command that Spark runs for Python without PYSPARK_PYTHON."""
PYTHON_ADVICE: Final = f"set PYSPARK_PYTHON={sys.executable} before the session starts"
_PROBE: Final = "import sys, onceward.core.log, numpy, pyarrow; print('.'.join(map(str, sys.version_info[:2])))"
PROBE_SECONDS: Final = 15.0
"""Seconds for which a start waits for the probe; a cluster may be busy, or still be starting executors."""
PROBE_TASKS: Final = 16
"""The most tasks of a probe; each of them keeps one Python worker, which the first epoch uses."""
DOCTOR_SECONDS: Final = 120.0
"""Seconds for which `onceward doctor` waits for it."""
_CHECK: Final = "executors"
ANSWER: Final = "answer"
MARK: Final = "executors differ: "
_MARKED: Final = re.compile(rf"{MARK}(.*)")
_OF_SPARK: Final = (
    re.compile(r"\[PYTHON_VERSION_MISMATCH\] (.*)"),
    re.compile(r"(Cannot run program .*)"),
)
"""Messages of Spark about an interpreter that cannot work at all."""
_OF_PYTHON: Final = re.compile(r"((?:ModuleNotFoundError|\[PACKAGE_NOT_INSTALLED\]|ImportError):? .*)")
_ADVICE: Final = "Nothing was written. Give executors the same minor version of Python, and the same packages"


class Answer(NamedTuple):
    """What one task of a probe has found.

    Attributes:
        host: Name of the machine on which the task ran.
        problem: Reason why nothing can be written from there; empty if nothing is wrong.
        sink: The sink whose target does not answer there; empty if it is not about one.
    """

    host: str
    problem: str
    sink: str = ""


class Executors:
    """The executors of a cluster, which are being asked whether they can write into these sinks.

    Args:
        spark: Session whose executors are asked.
        tasks: Number of tasks that ask; Spark spreads them over the executors.
        checks: Pairs of a sink's name and a function that each task calls: it raises an error if the sink's target does
            not answer.

    Attributes:
        answers: Answers of the tasks, once `problem` has returned.
    """

    def __init__(self, spark: SparkSession, tasks: int, checks: Iterable[tuple[str, Callable[[], object]]]) -> None:
        probe = probing(sealed(list(checks)))
        self._asking: _Asking | None = _Asking(spark, max(1, min(tasks, PROBE_TASKS)), probe)
        self._problem: OncewardError | None = None
        self.answers: list[Answer] = []

    def problem(self, *, seconds: float = PROBE_SECONDS) -> OncewardError | None:
        """Return why executors cannot write; None if nothing is wrong, or if they have not answered in time: see (3).

        Args:
            seconds: Seconds for which the first call waits for their answers; later calls return the same.
        """
        if self._asking is not None:
            asking, self._asking = self._asking, None
            asking.join(seconds)
            self._problem = self._told_by(asking, seconds)
        return self._problem

    def _told_by(self, asking: _Asking, seconds: float) -> OncewardError | None:
        if asking.is_alive():
            _log.info("the executors have not answered within %g s: the tasks of the first epoch will check", seconds)
            return None
        if asking.failure is None:
            self.answers = asking.answers
            return problem_of(asking.answers)
        why = reason_of(asking.failure, (*_OF_SPARK, _OF_PYTHON))
        if why is None:
            _log.debug("the executors could not be asked", exc_info=asking.failure)
            return None
        return ConfigurationError(f"the executors cannot run onceward: {why}. {_ADVICE}")


class _Asking(threading.Thread):
    """A probe that is running."""

    def __init__(self, spark: SparkSession, tasks: int, probe: Callable[..., Any]) -> None:
        super().__init__(name="onceward-probe", daemon=True)
        self._what = spark, tasks, probe
        self.answers: list[Answer] = []
        self.failure: Exception | None = None
        self.start()

    def run(self) -> None:
        spark, tasks, probe = self._what
        try:
            rows = spark.range(0, tasks, 1, tasks).mapInArrow(probe, f"{ANSWER} string").collect()
            self.answers = [Answer(**json.loads(row[ANSWER])) for row in rows]
        except Exception as error:  # noqa: BLE001 - a probe that fails for another reason must not stop the query
            self.failure = error


def executors_of(session: QuerySession, sinks: Sequence[Sink]) -> Executors | None:
    """Begin to ask the executors of a cluster; None if the master is local, or nothing may be started now."""
    master = session.master
    if EXPLAINING.get() or master is None or re.match(r"local(\[|$)", master):
        return None
    checks = [(sink.name, partial(_reach, sink, connector_of(sink))) for sink in sinks]
    return Executors(session.spark, session.slots() or 1, checks)


def _reach(sink: Sink, kind: type[Connector] | None) -> None:
    if kind is not None:
        kind.reach(sink)


def check_cluster(master: str, systems: Iterable[Connector]) -> Finding:
    """Ask the executors of a cluster whether they can run onceward and reach these systems; `onceward doctor` asks.

    Args:
        master: Spark's master, or the URL of a Spark Connect server.
        systems: The systems, as their commands reach them.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - starts a JVM

    remote = master.startswith("sc:")
    if not remote and without_logins(master) != master:  # Spark would print it
        why = f"{without_logins(master)} is no address of a master: it holds a login"
        return failed(_CHECK, why, "give spark://host:port, k8s://https://host:port, yarn or sc://host:port")
    builder = SparkSession.builder.appName("onceward doctor")
    try:
        spark = (builder.remote(master) if remote else builder.master(master)).getOrCreate()
    except Exception as error:  # noqa: BLE001 - whatever Spark raises
        why = without_logins(f"no session of {master}: {text_of(error).splitlines()[0]}")
        return failed(_CHECK, why, "give the address of Spark's master or Connect server, and see that it answers")
    session = session_of(spark)
    checks = [(system.name, partial(_check, system)) for system in systems]
    try:
        tasks, answers = 0, list[Answer]()
        while tasks < (slots := session.slots() or 1):  # executors come one after the other
            tasks, executors = slots, Executors(spark, slots, checks)
            problem = executors.problem(seconds=DOCTOR_SECONDS)
            if problem is not None:
                return failed(_CHECK, problem.message, "install the same packages on every machine")
            answers += executors.answers
    finally:
        spark.stop()
    if not answers:
        return failed(_CHECK, f"no executor of {master} has answered", "has the cluster workers with free cores?")
    hosts = ", ".join(sorted({answer.host for answer in answers}))
    reached = "".join(f", and reach {system.name}" for system in systems)
    return ok(_CHECK, f"on {hosts}: they run onceward {onceward.__version__}{reached}")


def _check(system: Connector) -> None:
    bad = [finding for finding in system.check([], None) if finding.health is Health.FAILED]
    if bad:
        raise SinkError("; ".join(f"{finding.check}: {finding.found}" for finding in bad))


def problem_of(answers: Iterable[Answer]) -> OncewardError | None:
    """Return an error that names each kind of problem once, with the hosts that have it; None if there is none."""
    hosts: dict[tuple[str, str], set[str]] = {}
    for answer in answers:
        if answer.problem:
            hosts.setdefault((answer.problem, answer.sink), set()).add(answer.host)
    if not hosts:
        return None
    problems = "; ".join(f"on {', '.join(sorted(where))}: {why}" for (why, _), where in hosts.items())
    [(_, sink), *_] = hosts
    if all(of for _, of in hosts):
        why = f"executors cannot reach the target, which answers the driver ({problems}). Nothing was written"
        return RetryableSinkError(why, sink=sink)
    return ConfigurationError(f"the executors cannot run this query ({problems}). {_ADVICE}")


def reason_of(error: BaseException, patterns: Iterable[re.Pattern[str]] = _OF_SPARK) -> str | None:
    """Return what an error of Spark says of the executors' Python; None if it is about something else."""
    text = text_of(error)
    for pattern in (_MARKED, *patterns):
        match = pattern.search(text)
        if match is not None:
            return match[1].strip().rstrip(".")
    return None


def executor_error(error: Exception) -> OncewardError | None:
    """Return the error of a job that failed because an executor cannot run onceward, or None: see (3)."""
    why = reason_of(error) if isinstance(error, spark_errors()) else None
    return None if why is None else ConfigurationError(f"an executor cannot run onceward: {why}. {_ADVICE}")


def sealed(what: object) -> Callable[[], Any]:
    """Return a function that returns the object where it runs, and says so if onceward there is not the driver's."""
    from pyspark import cloudpickle  # noqa: PLC0415 - needs a Spark installation

    return _opener(cloudpickle.dumps(what), onceward.__version__, MARK)  # type: ignore[no-untyped-call]


def _opener(packed: bytes, version: str, mark: str) -> Callable[[], Any]:
    """Return a function that is pickled with its code: it has to run where onceward is missing."""

    def opened() -> Any:
        import pickle  # noqa: PLC0415 - these imports travel with the code
        import sys  # noqa: PLC0415
        from importlib import import_module  # noqa: PLC0415

        try:
            there = import_module("onceward").__version__
        except ImportError as error:
            # No error of onceward's own, which is missing here: the driver finds the mark in Spark's text.
            raise RuntimeError(
                f"{mark}{sys.executable} there cannot import onceward ({error!r}); the driver has version {version}"
            ) from None
        if there != version:
            raise RuntimeError(f"{mark}onceward is {version} on the driver and {there} there: install the same")
        try:
            return pickle.loads(packed)  # noqa: S301 - the driver's own
        except ImportError as error:
            raise RuntimeError(
                f"{mark}{sys.executable} there cannot import a module that a sink or a function needs ({error!r})"
            ) from None

    return opened


def sending(task: Callable[..., Iterator[pa.RecordBatch]]) -> Callable[..., Any]:
    """Return the function of a task for `mapInArrow`, as one that checks the executor first: see (3)."""
    opened = sealed(task)

    def run(batches: Any) -> Any:
        yield from opened()(batches)

    return run


def probing(opened: Callable[[], Any]) -> Callable[..., Any]:
    """Return the function of a probe's tasks for `mapInArrow`, which yields one answer as JSON: see (1).

    Args:
        opened: Returns pairs of a sink's name and what asks its target.
    """
    # Local names travel with the function, and this module may be missing where it runs.
    mark, column = MARK, ANSWER

    def probe(_: Any) -> Any:
        import json  # noqa: PLC0415 - these imports travel with the code
        import socket  # noqa: PLC0415

        import pyarrow as pa  # noqa: PLC0415

        answer = {"host": socket.gethostname(), "problem": "", "sink": ""}
        try:
            for name, check in opened():
                answer["sink"] = name
                check()
            answer["sink"] = ""
        except Exception as error:  # noqa: BLE001 - whatever a target raises
            answer["problem"] = (str(error) or type(error).__name__).removeprefix(mark)
        yield pa.RecordBatch.from_pydict({column: [json.dumps(answer)]})

    return probe


@functools.cache
def obstacle(python: str) -> str:
    """Return what keeps this interpreter, on this machine, from running onceward's code; empty if nothing does.

    Asked once in a process: it may cost a second.

    Args:
        python: A name on PATH or a path, as in PYSPARK_PYTHON.
    """
    program = shutil.which(python)
    if program is None:
        return f"there is no {python}"
    # The folder counts, too: several virtual environments may link to one interpreter, with other packages.
    one, other = Path(program), Path(sys.executable)
    if one.parent.resolve() == other.parent.resolve() and one.resolve() == other.resolve():  # python3, a link to python
        return ""
    answer = subprocess.run(  # noqa: S603 - the user's own Python
        [program, "-c", _PROBE], capture_output=True, encoding="utf-8", errors="replace", check=False
    )
    if answer.returncode != 0:
        reason = (answer.stderr.strip().splitlines() or ["no answer"])[-1]
        return f"{program} cannot run onceward ({reason})"
    theirs, ours = answer.stdout.strip(), ".".join(map(str, sys.version_info[:2]))
    return "" if theirs == ours else f"{program} is Python {theirs}, and the driver is Python {ours}"


def warn_of_python(spark: SparkSession) -> None:
    """Log a warning if executors on this machine lack the packages: Spark itself says only that something failed."""
    if connect_of(spark) is not None:
        return  # its server runs elsewhere
    context = spark.sparkContext
    if context.master is None or not context.master.startswith("local"):
        return  # they are elsewhere
    problem = obstacle(context.pythonExec)
    if problem:
        _log.warning("executors run %s, but %s: %s", context.pythonExec, problem, PYTHON_ADVICE)
