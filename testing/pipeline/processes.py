"""Which processes of a driver do its work: found by their place in its process tree, and by whom they report to.

PySpark's driver is a Python process whose child is a JVM (with spark-submit, the other way round). In local mode that
JVM runs the tasks. On a cluster an executor's JVM is a child of Spark's worker daemon, so that no process tree leads to
it from the driver; but it is started with the address of the driver (`--driver-url`), on whose port one of the
driver's processes listens. An executor on another machine is out of reach.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .driver import DriverProcess

_DRIVER_URL: Final = re.compile(r"--driver-url\0[^\0]*:(\d+)(?:\0|$)")


def python_workers(driver: DriverProcess) -> list[psutil.Process]:
    """Python processes below the driver that have no children: Spark's workers, not the daemon that forks them."""
    return [process for process in driver.descendants() if _is_worker(process)]


def _is_worker(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.name().startswith("python") and not process.children()
    return False


def jvms(driver: DriverProcess) -> list[psutil.Process]:
    """The JVMs of Spark's executors; without executors, those of the driver itself."""
    own = [process for process in driver.family() if _is_jvm(process)]
    if not own:
        return []
    ports = {port for process in own for port in _listening(process)}
    return [process for process in psutil.process_iter() if _reports_to(process) in ports] or own


def _is_jvm(process: psutil.Process) -> bool:
    with suppress(psutil.Error, OSError):
        return Path(process.exe()).name == "java"
    return False


def _listening(process: psutil.Process) -> Iterable[int]:
    with suppress(psutil.Error):
        return [end.laddr.port for end in process.net_connections("tcp") if end.status == psutil.CONN_LISTEN]
    return []


def _reports_to(process: psutil.Process) -> int | None:
    """The port of the driver that an executor was started for; None of any other process."""
    with suppress(psutil.Error):
        found = _DRIVER_URL.search("\0".join(process.cmdline()))
        return int(found[1]) if found and _is_jvm(process) else None
    return None
