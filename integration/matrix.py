"""python -m integration.matrix [--only PYSPARK-PYTHON …]: a slice of the tests on each version of pyspark and Python.

Each pair gets a virtual environment of its own in .cache/matrix, with the wheel of this checkout, the extras that the
slice needs, and the other packages as requirements.lock has them. The tests run in a copy of their folders without the
source beside it, so that they meet the wheel. The slice is Kafka to Spark to Kafka, PostgreSQL and files with Spark's
own Kafka source and kills of driver and JVM, crashes at each step of an epoch, replays, conflicts and savepoints;
from 4.0 on some of it over Spark Connect, too; and what Python data sources can do, where there are any. The results
are written into docs/support.md, pair by pair.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from .faces import SHORT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ROOT: Final = Path(__file__).parent.parent
SUPPORT: Final = ROOT / "docs" / "support.md"
BEGIN, END = "<!-- written by make matrix -->", "<!-- end of what make matrix writes -->"
EXTRAS: Final = "kafka,postgres,dev-services,testing"
TOOLS: Final = ("hypothesis", "psutil", "pytest", "pytest-randomly", "pytest-timeout", "pytest-xdist", "setuptools")
COPIED: Final = ("docs", "integration", "tests", "pyproject.toml", "requirements.lock")
SECONDS: Final = 3600
"""After this time the tests of a pair have failed."""
SLICE: Final = (
    "integration/test_spark_older.py",
    "integration/test_spark_exactly_once.py::test_88_a_driver_that_dies_at_any_step_loses_and_doubles_nothing",
    "integration/test_spark_exactly_once.py::test_16_dying_twice_in_recovery_loses_and_doubles_nothing",
    "integration/test_spark_exactly_once.py::test_87_a_replayed_batch_is_recognised_and_not_written_again",
    "integration/test_spark_exactly_once.py::test_91_an_old_name_with_a_new_checkpoint_is_refused",
    "integration/test_spark_exactly_once.py::test_99_a_stateful_query_that_replays_a_decided_batch_keeps_its_totals",
    "integration/test_savepoints.py::test_the_recipes_of_the_page_are_exact",
    "integration/test_spark_stateful.py",
    *SHORT,
)
READING: Final = (
    "integration/test_kafka_source_spark.py::test_a_running_query_reads_what_comes_and_goes_on_after_a_restart",
    "integration/test_kafka_source_spark.py::test_67_a_replayed_batch_has_the_same_rows_whatever_happened_since",
)
WRITING: Final = (
    "integration/test_spark_formats.py::test_postgres_append_restart_and_replay",
    "integration/test_spark_formats.py::test_kafka_stream_and_batch",
)


_OVER_CONNECT: Final = "integration/test_spark_connect.py::test_"
CONNECT: Final = (
    f"{_OVER_CONNECT}each_record_takes_effect_once_across_restarts",
    f"{_OVER_CONNECT}a_process_of_foreach_batch_that_dies_at_any_step_loses_and_doubles_nothing",
    f"{_OVER_CONNECT}transformations_of_outputs_are_computed_once_and_both_sinks_get_the_same",
    f"{_OVER_CONNECT}a_block_of_foreach_batch_is_refused_by_start",
    f"{_OVER_CONNECT}a_stateful_query_goes_on_after_a_replay",
    f"{_OVER_CONNECT}the_plan_is_that_of_the_server",
    f"{_OVER_CONNECT}what_cannot_work_is_refused_before_the_server_is_asked",
)


class Environment(NamedTuple):
    """A version of pyspark and one of Python."""

    pyspark: str
    python: str

    @property
    def name(self) -> str:
        return f"{self.pyspark}-{self.python}"

    @property
    def release(self) -> tuple[int, int]:
        """The first two numbers of pyspark's version."""
        major, minor = self.pyspark.split(".")[:2]
        return int(major), int(minor)

    @property
    def tests(self) -> list[str]:
        reading = (*READING, *CONNECT) if self.release >= (4, 0) else ()
        writing = WRITING if self.release >= (4, 1) else ()
        return [*SLICE, *reading, *writing]


ENVIRONMENTS: Final = (
    Environment("3.5.9", "3.11"),
    Environment("4.0.5", "3.11"),
    Environment("4.1.4", "3.12"),
    Environment("4.2.0", "3.13"),
    Environment("4.2.1", "3.12"),
    Environment("4.3.0", "3.13"),
)


class Result(NamedTuple):
    """What became of the tests of one environment."""

    python: str
    passed: int
    failed: tuple[str, ...]
    skipped: int


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m integration.matrix", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="PYSPARK-PYTHON", choices=[one.name for one in ENVIRONMENTS])
    parser.add_argument("--workers", default=os.environ.get("WORKERS", "2"), help="processes of the tests")
    given = parser.parse_args(arguments)
    wanted = [one for one in ENVIRONMENTS if given.only is None or one.name in given.only]
    with tempfile.TemporaryDirectory(prefix="matrix-") as scratch:
        wheel = built_wheel(Path(scratch))
        results = {}
        for one in wanted:
            say(f"== pyspark {one.pyspark}, Python {one.python}")
            results[one] = tested(one, made(one, wheel), copied(Path(scratch, one.name)), given.workers)
            SUPPORT.write_text(with_results(SUPPORT.read_text(), {one: results[one]}))
    for one, result in results.items():
        say(row(one, result))
    return int(any(result.failed or not result.passed for result in results.values()))


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def built_wheel(folder: Path) -> Path:
    """Build the wheel of this checkout."""
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    return next(folder.glob("onceward-*.whl"))


def interpreter(version: str) -> str:
    """Return a Python of this minor version: of PATH, or of pyenv."""
    candidates = [shutil.which(f"python{version}"), shutil.which("python3")]
    candidates += [str(path) for path in Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
    for candidate in filter(None, candidates):
        asked = subprocess.run([candidate, "-V"], capture_output=True, text=True, check=False)
        if asked.returncode == 0 and asked.stdout.startswith(f"Python {version}."):
            return candidate
    raise SystemExit(f"there is no Python {version}, neither on PATH nor of pyenv")


def made(one: Environment, wheel: Path) -> Path:
    """Make the pair's virtual environment, and return its interpreter."""
    folder = ROOT / ".cache" / "matrix" / one.name
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([interpreter(one.python), "-m", "venv", folder], check=True)
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join([*locked_versions(), f"pyspark=={one.pyspark}"]))
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint", constraints]
    pyspark = f"pyspark[connect]=={one.pyspark}" if one.release >= (4, 0) else f"pyspark=={one.pyspark}"
    subprocess.run([*pip, *TOOLS, "pandas", pyspark, f"{wheel}[{EXTRAS}]"], check=True)
    subprocess.run([*pip, "--no-deps", "--force-reinstall", wheel], check=True)
    return python


def locked_versions() -> list[str]:
    """Return the lines of requirements.lock without hashes, and without pyspark."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pinned = [line.removesuffix("\\").strip() for line in lines if re.match(r"[\w.-]+==", line)]
    return [line for line in pinned if not line.startswith("pyspark")]


def copied(folder: Path) -> Path:
    """Copy the tests to where there is no source.

    Without `integration/daemon`, which warms up the processes of this checkout's pyspark: on 4.3, Spark finds no data
    source in Python behind it.
    """
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "daemon", "results"))
        else:
            shutil.copy(source, folder / name)
    return folder


def tested(one: Environment, python: Path, folder: Path, workers: str) -> Result:
    """Run the pair's tests; what fails is tried once more, as in .ci/run."""
    version = subprocess.run([python, "-V"], capture_output=True, text=True, check=True).stdout.split()[1]
    first = run(python, folder, [*one.tests, "--numprocesses", workers])
    result = result_of(first, version)
    if first and result.failed:
        say(f"once more: {', '.join(result.failed)}")
        result = tried_again(result, result_of(run(python, folder, last_failed(folder)), version))
    return result


def tried_again(first: Result, again: Result) -> Result:
    """Return the result of both runs; tests that the second one did not run have failed."""
    if again.passed + len(again.failed) != len(first.failed):
        return first
    return first._replace(failed=again.failed, passed=first.passed + again.passed)


def last_failed(folder: Path) -> list[str]:
    """Return the ids of the tests that failed, from pytest's cache: `--last-failed` finds no test that is named."""
    return list(json.loads((folder / ".pytest_cache/v/cache/lastfailed").read_text()))


def run(python: Path, folder: Path, arguments: Sequence[str]) -> str:
    """Run pytest, and return its report; empty if there is none."""
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    pytest = [python, "-m", "pytest", "-q", "--junitxml", report, "-W", "default", "-o", "pythonpath=.", *arguments]
    pytest += [
        "-m",
        "not nightly",
        "--timeout",
        "900",
        "--durations=5",
        "--dist",
        "loadscope",
        "--no-loadscope-reorder",
    ]
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    began = time.monotonic()
    try:
        environment = {**os.environ, "PATH": path, "PYTHONPATH": ""}
        subprocess.run(pytest, cwd=folder, env=environment, check=False, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        say(f"the tests did not end in {SECONDS} s")
    say(f"{time.monotonic() - began:.0f} s")
    return report.read_text() if report.exists() else ""


def result_of(report: str, python: str) -> Result:
    """Read a report of pytest."""
    if not report:
        return Result(python, 0, ("no report",), 0)
    cases = list(ET.fromstring(report).iter("testcase"))
    failed = [str(case.get("name")) for case in cases if {child.tag for child in case} & {"failure", "error"}]
    skipped = sum(any(child.tag == "skipped" for child in case) for case in cases)
    return Result(python, len(cases) - len(failed) - skipped, tuple(failed), skipped)


def row(one: Environment, result: Result) -> str:
    """Return the line of the table."""
    kafka = "Spark's own"
    once = "`exactly_once`, over Spark Connect, too" if one.release >= (4, 0) else "`exactly_once`"
    reading = [kafka] + ["`KafkaSource`"] * (one.release >= (4, 0))
    writing = [once] + ["formats"] * (one.release >= (4, 1))
    said = f"{result.passed} passed" + (
        f", {len(result.failed)} failed: {', '.join(result.failed)}" if result.failed else ""
    )
    return f"| PySpark {one.pyspark} | Python {result.python} | {', '.join(reading)} | {', '.join(writing)} | {said} |"


def with_results(page: str, results: Mapping[Environment, Result]) -> str:
    """Return the page with these lines of its table written anew; the others stay as they are."""
    before, _, rest = page.partition(BEGIN)
    table, _, after = rest.partition(END)
    rows = {key_of(line): line for line in table.splitlines() if re.match(r"\| PySpark \d", line)}
    rows |= {one: row(one, result) for one, result in results.items()}
    head = ["| PySpark | Python | sources | written through | tests |", "|---|---|---|---|---|"]
    lines = [rows[one] for one in ENVIRONMENTS if one in rows]
    return f"{before}{BEGIN}\n\n{joined([*head, *lines])}\n{END}{after}"


def key_of(line: str) -> Environment:
    _, pyspark, python, *_ = [cell.strip() for cell in line.split("|")]
    return Environment(pyspark.split()[1], ".".join(python.split()[1].split(".")[:2]))


def joined(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
