"""One background process that is found again from its state file, by this or another program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from . import guard
from .machine import DevServiceError

if TYPE_CHECKING:
    import signal
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class RunAs:
    """The system user under which a program runs."""

    name: str
    uid: int
    gid: int


def run_program(
    command: Sequence[str | Path],
    *,
    user: RunAs | None = None,
    cwd: Path = Path("/"),
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end and returns its exit code and output (standard error joined to standard output)."""
    return subprocess.run(  # noqa: S603 - the callers run programs that they found or fetched themselves
        command,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        cwd=cwd,
        env=env,
        user=user.uid if user else None,
        group=user.gid if user else None,
        extra_groups=[] if user else None,
    )


class BackgroundProcess:
    """A process in a session of its own, remembered in a file by id and creation time.

    Args:
        record: The file that remembers it.
        detached: True: it outlives this process. False: it is killed when this process ends, however that ends.
    """

    def __init__(self, record: Path, *, detached: bool) -> None:
        self.record = record
        self.detached = detached
        self._child: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    def launch(
        self,
        command: Sequence[str | Path],
        *,
        log: Path,
        user: RunAs | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Starts the command with its output appended to the log file (as `user`, if root must not run it)."""
        with log.open("ab") as output:
            child = subprocess.Popen(  # noqa: S603 - the callers run programs that they found or fetched themselves
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd="/",
                env=env,
                start_new_session=True,
                user=user.uid if user else None,
                group=user.gid if user else None,
                extra_groups=[] if user else None,
            )
        try:
            self._remember(child)
        except BaseException:
            child.kill()
            child.wait()
            raise
        self._child = child

    def _remember(self, child: subprocess.Popen[bytes]) -> None:
        created = psutil.Process(child.pid).create_time()
        if not self.detached:
            self._guard = _start_guard(child.pid, created)
        partial = self.record.with_suffix(".partial")
        partial.write_text(json.dumps({"pid": child.pid, "created": created}))
        partial.replace(self.record)

    def find(self) -> psutil.Process | None:
        """The process, if it runs."""
        try:
            remembered = json.loads(self.record.read_text())
        except FileNotFoundError:
            return None
        self._reap()
        return guard.find_process(remembered["pid"], remembered["created"])

    def stop(self, signals: Sequence[tuple[signal.Signals, float]]) -> None:
        """Sends each signal in turn and gives it its seconds; what is left after the last is killed."""
        process = self.find()
        for number, retry_seconds in signals:
            if process is None:
                break
            with suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
                process.send_signal(number)
                process.wait(retry_seconds)
            process = self.find()
        self.kill()

    def kill(self) -> None:
        """SIGKILL to the process and its descendants; returns when they are gone. No effect if it does not run.

        Raises:
            DevServiceError: It is still there.
        """
        process = self.find()
        if process is not None:
            guard.kill_tree(process)
        if self.find() is not None:
            raise DevServiceError(f"process {json.loads(self.record.read_text())['pid']} cannot be killed")
        self.record.unlink(missing_ok=True)
        self._dismiss_guard()

    def signal(self, number: signal.Signals) -> None:
        """Sends one signal to the process and to its descendants."""
        process = self.find()
        if process is None:
            return
        for member in [process, *process.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                member.send_signal(number)

    def ended_within(self, seconds: float) -> bool:
        """Waits this long for the process to end, and says whether it did."""
        process = self.find()
        if process is None:
            return True
        with suppress(psutil.TimeoutExpired):
            process.wait(seconds)
        return self.find() is None

    def _reap(self) -> None:
        if self._child is not None and self._child.poll() is not None:
            self._dismiss_guard()

    def _dismiss_guard(self) -> None:
        if self._child is not None:
            self._child.wait()
            self._child = None
        if self._guard is not None and self._guard.stdin is not None:
            # It ends by itself when its pipe is closed, unless somebody forked meanwhile and holds the other end too.
            self._guard.kill()
            self._guard.wait()
            self._guard.stdin.close()
            self._guard = None


def _start_guard(pid: int, created: float) -> subprocess.Popen[bytes]:
    # -P: the folder of the script must not come first on the module path, PYTHONPATH must stay on it.
    return subprocess.Popen(  # noqa: S603 - this very Python and a file of this package
        [sys.executable, "-P", guard.__file__, str(pid), repr(created)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        start_new_session=True,
    )
