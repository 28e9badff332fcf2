"""Which Python the executors run, and whether it can run onceward."""

from __future__ import annotations

import functools
import logging
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("onceward.spark")
DEFAULT_PYTHON: Final = "python3"
"""What Spark runs without PYSPARK_PYTHON."""
PYTHON_ADVICE: Final = f"set PYSPARK_PYTHON={sys.executable} before the session starts"
_PROBE: Final = "import sys, onceward.core, pyarrow; print('.'.join(map(str, sys.version_info[:2])))"


@functools.cache
def obstacle(python: str) -> str:
    """Return what keeps this interpreter, on this machine, from running onceward's code; empty if nothing does.

    Asked once in a process: it may cost a second.

    Args:
        python: A name on PATH or a path, as in PYSPARK_PYTHON.
    """
    found = shutil.which(python)
    if found is None:
        return f"there is no {python}"
    one, other = Path(found), Path(sys.executable)
    if one.parent == other.parent and one.resolve() == other.resolve():  # `python3` and `python` are links to one file
        return ""
    answer = subprocess.run([found, "-c", _PROBE], capture_output=True, text=True, check=False)  # noqa: S603 - the user's own Python
    if answer.returncode != 0:
        reason = (answer.stderr.strip().splitlines() or ["no answer"])[-1]
        return f"{found} cannot run onceward ({reason})"
    theirs, mine = answer.stdout.strip(), ".".join(map(str, sys.version_info[:2]))
    return "" if theirs == mine else f"{found} is Python {theirs}, and the driver is Python {mine}"


def warn_of_python(spark: SparkSession) -> None:
    """Log a warning if executors on this machine lack the packages: Spark itself says only that something failed."""
    if is_connect(spark):
        return  # its server runs elsewhere
    context = spark.sparkContext
    if context.master is None or not context.master.startswith("local"):
        return  # they are elsewhere
    found = obstacle(context.pythonExec)
    if found:
        _log.warning("executors run %s, but %s: %s", context.pythonExec, found, PYTHON_ADVICE)
