"""`onceward run`: start a driver, and start it again after a failure, by the restart strategies of the engine."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from onceward.core.errors import ConfigurationError, text_of
from onceward.core.kit.text_options import pairs
from onceward.core.log.notes import note_life
from onceward.core.log.run_writers import OVERTAKEN, RUN_VARIABLE, registered_logs, writers_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from onceward.core import RestartStrategy

STRATEGIES: Final = ("none", "fixed-delay", "failure-rate", "exponential-delay")
"""Names of the restart strategies; a shell completes them without importing the engine."""
MISTAKES: Final = frozenset({2, 64, 78, 126, 127})
"""Exit codes that no restart mends: wrong arguments (argparse, click, EX_USAGE), wrong settings (EX_CONFIG), a program
that cannot be run."""
_ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_PASSED_ON: Final = (*_ENDING, signal.SIGUSR1, signal.SIGUSR2)
_LOOK_SECONDS: Final = 0.2
"""A signal ends a pause within this time."""
_SIGNALLED: Final = 128
"""Plus the signal's number: the exit code of a process that a signal has ended, as shells have it."""


def run(
    command: Annotated[list[str], typer.Argument(help="The driver program and its arguments, after `--`.")],
    *,
    restart: Annotated[
        str | None,
        typer.Option(
            help="Strategy: fixed-delay, exponential-delay, failure-rate or none. Default: exponential-delay, "
            "or what --config or the environment (ONCEWARD_RESTART_…) say.",
            autocompletion=lambda incomplete: [name for name in STRATEGIES if name.startswith(incomplete)],
        ),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A setting of the strategy, such as attempts=5; repeatable."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file whose table `restart` has the strategy and its settings.")
    ] = None,
) -> None:
    """Run a driver program, and start it again when it fails.

    Exits with the driver's code. It is not started again after code 0, after a code that means a mistake (2, 64, 78,
    126, 127), after SIGTERM, SIGINT, SIGHUP or SIGQUIT, which are passed on to it, or when another run of its pipeline
    has started since.
    """
    from onceward.core import RestartStrategy  # noqa: PLC0415 - the embedded engine

    settings = pairs("--setting", setting)
    if settings and restart is None:
        raise ConfigurationError("--setting needs --restart: a strategy whose setting it is")
    if restart is not None:
        strategy = RestartStrategy.of(restart, settings)
    else:
        strategy = RestartStrategy.load(config) or RestartStrategy.exponential_delay()
    raise typer.Exit(Supervisor(command, strategy).run())


class Supervisor:
    """Starts a driver until it ends well, ends by a mistake, is told to stop, or the strategy gives up.

    Args:
        command: The program and its arguments.
        strategy: Strategy that says when to start it again.
        clock: Seconds, for the strategy.
    """

    def __init__(
        self, command: Sequence[str], strategy: RestartStrategy, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._command, self._strategy, self._clock = list(command), strategy, clock
        self._driver: subprocess.Popen[bytes] | None = None
        self._stopping = False  # no Event: a signal handler that sets it may wait for a lock that this thread holds

    def run(self) -> int:
        """Return the exit code of the driver's last life.

        Raises:
            ConfigurationError: The program cannot be started.
        """
        before = {number: signal.signal(number, self._pass_on) for number in _PASSED_ON}
        try:
            with tempfile.TemporaryDirectory(prefix="onceward-run-", ignore_cleanup_errors=True) as folder:
                return self._lives(Path(folder))
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _lives(self, folder: Path) -> int:
        restarts = self._strategy.begin()
        while True:
            began = self._clock()
            code = self._live(folder)
            now = self._clock()
            pause = None if code == 0 or self._stopping else self._pause_after(code, folder, restarts, now, now - began)
            self._note(folder, code, now - began, pause)
            if pause is None:
                return code
            self._pause(pause)
            if self._stopping:
                self._note(folder, code, 0.0, None)
                return code

    def _pause_after(
        self, code: int, folder: Path, restarts: Callable[[float, float], float | None], now: float, lived: float
    ) -> float | None:
        """Say what follows a failure, and return the seconds until the next start; None if there is none."""
        if code in MISTAKES:
            self._say(f"ended with code {code}, which means a wrong setting or argument: a restart would not help")
            return None
        with suppress(FileNotFoundError):
            self._say(f"ended with code {code}, and is not started again: {(folder / OVERTAKEN).read_text()}")
            return None
        pause = restarts(now, lived)
        if pause is None:
            self._say(f"ended with code {code}, and strategy {self._strategy.name} gives up")
        else:
            self._say(f"ended with code {code}, and is started again in {pause:.1f} s")
        return pause

    def _note(self, folder: Path, code: int, seconds: float, again: float | None) -> None:
        """Note beside each decision log that the driver has used how it has ended, and when it is started again."""
        if (folder / OVERTAKEN).exists():  # a newer run writes the notes now
            return
        for log in registered_logs(folder):
            note_life(log, code, seconds, again=again, stopped=self._stopping, writers=writers_in(folder))

    def _live(self, folder: Path) -> int:
        """Run the driver once, in a process group of its own, then kill the rest of the group; return the exit code."""
        try:
            self._driver = driver = subprocess.Popen(  # noqa: S603 - the user's
                self._command, start_new_session=True, env={**os.environ, RUN_VARIABLE: str(folder)}
            )
        except OSError as error:
            raise ConfigurationError(f"the driver cannot be started: {text_of(error)}") from error
        if self._stopping:  # the signal came before there was anybody to pass it on to
            driver.terminate()
        code = driver.wait()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(driver.pid, signal.SIGKILL)
        return code if code >= 0 else _SIGNALLED - code

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._stopping and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_SECONDS))

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        if number in _ENDING:
            self._stopping = True
        if self._driver is not None and self._driver.returncode is None:
            self._driver.send_signal(number)

    def _say(self, what: str) -> None:
        typer.echo(f"onceward run: the driver {what}", err=True)
