"""The Python that Spark's executors run: it must be able to import what the driver has."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("onceward.spark")

DEFAULT: Final = "python3"
"""What Spark runs without PYSPARK_PYTHON."""
ADVICE: Final = f"set PYSPARK_PYTHON={sys.executable} before the session starts"
_PROBE: Final = "import sys, onceward.core, pyarrow; print('.'.join(map(str, sys.version_info[:2])))"


def obstacle(python: str) -> str:
    """What keeps this interpreter, on this machine, from running onceward's code; empty if nothing does.

    Args:
        python: A name on PATH or a path, as in PYSPARK_PYTHON.
    """
    found = shutil.which(python)
    if found is None:
        return f"there is no {python}"
    if _same(Path(found), Path(sys.executable)):
        return ""
    answer = subprocess.run([found, "-c", _PROBE], capture_output=True, text=True, check=False)  # noqa: S603 - the user's own Python
    if answer.returncode != 0:
        reason = (answer.stderr.strip().splitlines() or ["no answer"])[-1]
        return f"{found} cannot run onceward ({reason})"
    theirs, mine = answer.stdout.strip(), ".".join(map(str, sys.version_info[:2]))
    return "" if theirs == mine else f"{found} is Python {theirs}, and the driver is Python {mine}"


@cache
def obstacle_once(python: str) -> str:
    """The same, asked once in this process: it may cost a second."""
    return obstacle(python)


def warn_of_python(spark: SparkSession) -> None:
    """Log a warning if executors on this machine lack the packages: Spark itself says only that something failed."""
    context = spark.sparkContext
    if context.master is None or not context.master.startswith("local"):
        return  # they are elsewhere
    found = obstacle_once(context.pythonExec)
    if found:
        _log.warning("executors run %s, but %s: %s", context.pythonExec, found, ADVICE)


def _same(one: Path, other: Path) -> bool:
    """A virtual environment's `python3` and `python` are links to one file, in one folder."""
    return one.parent == other.parent and one.resolve() == other.resolve()
