"""The demo's driver process, as the supervisor handles it: started, watched, killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from pathlib import Path

    from .settings import DemoSettings

_LEFTOVER_SECONDS = 10.0


class Driver:
    """One life of the driver process, in a process group of its own."""

    def __init__(self, settings: DemoSettings, settings_file: Path, log: Path) -> None:
        self._events = settings.events
        self._read = settings.events.stat().st_size if settings.events.exists() else 0
        with log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", "onceward.cli.demo.pipeline", str(settings_file)],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def events(self) -> list[dict[str, Any]]:
        """What the driver has reported since the last call; a line cut short by a kill is left out."""
        if not self._events.exists():
            return []
        with self._events.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        found: list[dict[str, Any]] = []
        for line in whole.splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                found.append(json.loads(line))
        return found

    def kill(self) -> None:
        """SIGKILL the whole process group: driver, JVM and all; Spark's Python workers have groups of their own."""
        descendants = self._descendants()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        # The workers end by themselves when the JVM is gone; whatever does not is a zombie writer for so long.
        _, alive = psutil.wait_procs(descendants, timeout=_LEFTOVER_SECONDS)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def _descendants(self) -> list[psutil.Process]:
        try:
            found: list[psutil.Process] = psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return found
