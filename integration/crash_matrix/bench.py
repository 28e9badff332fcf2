"""One worker of a campaign: services that run through, drivers that die, a judge after each case."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

import msgspec
import psutil

from onceward.core.operations.comparison import Comparison, compare
from onceward.core.operations.comparison import Mismatch as Fault
from onceward.testing.machine import accepts_connections
from onceward.testing.pipeline.endpoints import UnreadableError

from ..mariadb_kit import PROGRAM, MariaDb, running_mariadb
from ..redis_kit import running_valkey
from .drivers import Job, Style, drive
from .hook import Hook
from .spark_host import Gateway, spark_hosts
from .targets import COMBINATIONS, Place, rows
from .trap import Death, Strike, Trap

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from onceward.testing.services import DevServices

    from .cells import Case

_RUN_SECONDS: Final = 240.0
_JUDGE_SECONDS: Final = 20.0
_TAKEOVER_SECONDS: Final = 3.0
_LIVES: Final = 5
_POLL_SECONDS: Final = 0.005
_ROWS: Final = 6
_LOG_BYTES: Final = 6000
_drivers = multiprocessing.get_context("forkserver")
_drivers.set_forkserver_preload([f"{__package__}.preload"])


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came of a case.

    Attributes:
        case: Its name.
        style: Driving style.
        combination: Of sinks.
        strikes: What was to happen.
        struck: How many of them did.
        seconds: That the case took.
        missing, duplicated, wrong: Rows, over all targets.
        left: What was left open, prepared, staged or pending.
        problem: What else was wrong: the next driver did not finish, a run did not end.
        log: End of the drivers' log, if something was wrong.
    """

    case: str
    style: Style
    combination: str
    strikes: tuple[Strike, ...]
    struck: int
    seconds: float
    missing: int = 0
    duplicated: int = 0
    wrong: int = 0
    left: tuple[str, ...] = ()
    problem: str = ""
    log: str = ""

    @property
    def exact(self) -> bool:
        return not (self.missing or self.duplicated or self.wrong or self.left or self.problem)


class Stuck(Exception):  # noqa: N818 - it is told as a problem
    """A driver did not end."""


class Bench:
    """Services, warm Spark JVMs, and the pipeline that runs now.

    Args:
        folder: Empty; for everything.
        services: Kafka and PostgreSQL; the other servers are the bench's own.
        dsn: A database of the server.
        evidence: Where the folder of a pipeline goes that was not exact.
    """

    def __init__(self, folder: Path, services: DevServices, dsn: str, evidence: Path) -> None:
        self._folder, self._services, self._dsn, self._evidence = folder, services, dsn, evidence
        self._stack = ExitStack()
        self._hosts: list[Gateway] = []
        self._pipelines = 0

    def __enter__(self) -> Self:
        trap = self._folder / "trap"
        trap.mkdir(parents=True)
        self._valkey = self._stack.enter_context(running_valkey())
        ports: list[int | None] = [int(self._services.bootstrap_servers.rpartition(":")[2]), urlsplit(self._dsn).port]
        self._hook = Hook()
        self._stack.enter_context(self._hook.up())
        self._mariadb: MariaDb | None = self._stack.enter_context(running_mariadb()) if PROGRAM else None
        ports += [self._valkey.port, self._hook.port, self._mariadb.port if self._mariadb else None]
        self._ports = tuple(port for port in ports if port)
        self._trap_folder, self._trap = trap, Trap(trap, self._ports)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, cases: Sequence[Case]) -> Iterator[Outcome]:
        """The cases of one group, one after another."""
        exact = False
        for case in cases:
            if not exact:
                self._new_pipeline(case)
            outcome = self._run(case)
            exact = outcome.exact
            if not exact:
                shutil.copytree(self._job.place.folder, self._evidence / case.name, dirs_exist_ok=True)
            yield outcome
        if cases:
            shutil.rmtree(self._job.place.folder)

    def _new_pipeline(self, case: Case) -> None:
        self._pipelines += 1
        name = f"matrix{self._pipelines}"  # its targets' names too
        folder = self._folder / name
        place = Place(
            name,
            folder,
            self._services.bootstrap_servers,
            self._dsn,
            self._valkey.url,
            f"http://127.0.0.1:{self._hook.port}",
            self._mariadb.url if self._mariadb else "",
        )
        self._job = Job(case.cell.style, COMBINATIONS[case.cell.combination], place)
        self._job.feed.mkdir(parents=True)
        self._fed = 0
        for kind in self._job.kinds:
            place.endpoint(kind).create(place.addresses)
        if self._job.style is not Style.ENGINE and not self._hosts:
            # one for drivers that are to be replaced, one for those that take over
            folders = [self._folder / f"spark{number}" for number in range(2)]
            self._hosts = self._stack.enter_context(spark_hosts(folders, self._trap_folder, self._ports))

    def _feed(self, files: int) -> None:
        for _ in range(files):
            lines = "".join(json.dumps(row) + "\n" for row in rows(self._fed, _ROWS))
            partial = self._job.feed / ".partial"
            partial.write_text(lines)
            partial.rename(self._job.feed / f"{self._fed:06d}.jsonl")
            self._fed += _ROWS

    def _run(self, case: Case) -> Outcome:
        began, problem = time.monotonic(), ""
        self._log.write_text("")
        try:
            self._feed(4)
            self._trap.set(case.strikes)
            self._until_struck(len(case.strikes))
            self._trap.clear()
            self._feed(2)
            code = self._wait(self._start())
            if code:
                problem = f"the next driver did not finish: exit code {code}"
        except Stuck as error:
            problem = str(error)
        struck = len(self._trap.struck)
        self._trap.clear()
        if not all(accepts_connections(int(host.port)) for host in self._hosts):
            raise RuntimeError("a Spark JVM is gone: the case says nothing")
        compared, left = self._judge()
        counts = {kind: sum(one.count(kind) for one in compared) for kind in Fault}
        outcome = Outcome(
            case=case.name,
            style=case.cell.style,
            combination=case.cell.combination,
            strikes=case.strikes,
            struck=struck,
            missing=counts[Fault.MISSING],
            duplicated=counts[Fault.DUPLICATED],
            wrong=counts[Fault.WRONG],
            left=left,
            problem=problem,
            seconds=round(time.monotonic() - began, 2),
        )
        return outcome if outcome.exact else msgspec.structs.replace(outcome, log=self._log.read_text()[-_LOG_BYTES:])

    @property
    def _log(self) -> Path:
        return self._job.place.folder / "drivers.log"

    def _start(self, host: int = 0) -> Any:
        gateway = self._hosts[host] if self._job.style is not Style.ENGINE else None
        process = _drivers.Process(target=drive, args=(self._job, self._trap, gateway, self._log))
        process.start()
        return process

    def _wait(self, process: Any) -> int:
        process.join(_RUN_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
            raise Stuck(f"a driver did not end within {_RUN_SECONDS:g} s")
        return int(process.exitcode)

    def _until_struck(self, strikes: int) -> None:
        """Start drivers, as a supervisor would, until all has happened or one comes to its end."""
        done = 0
        for _ in range(_LIVES):
            driver, deadline = self._start(), time.monotonic() + _RUN_SECONDS
            while driver.is_alive():
                for struck in self._trap.struck[done:]:
                    done += 1
                    self._assist(struck.strike.death, struck.pid)
                    deadline = time.monotonic() + _RUN_SECONDS  # another driver's run does not count
                if time.monotonic() > deadline:
                    self._wait_no_longer(driver)
                time.sleep(_POLL_SECONDS)
            done = len(self._trap.struck)
            if driver.exitcode == 0 or done == strikes:
                return

    def _wait_no_longer(self, driver: Any) -> None:
        driver.kill()
        driver.join()
        raise Stuck(f"a driver did not end within {_RUN_SECONDS:g} s")

    def _assist(self, death: Death, pid: int) -> None:
        """What a strike needs of somebody else."""
        if death is Death.PAUSE:
            self._take_over(pid)
        servers: dict[Death, Any] = {
            Death.KAFKA: self._services.kafka,
            Death.POSTGRES: self._services.postgres,
            Death.MARIADB: self._mariadb,
            Death.VALKEY: self._valkey,
        }
        server = servers.get(death)
        if server is not None:
            server.kill()
            self._trap.answered.touch()
            server.start_again()

    def _take_over(self, pid: int) -> None:
        """Let another driver finish, or at least START, while the process is paused."""
        with suppress(psutil.NoSuchProcess):
            paused = psutil.Process(pid)
            while paused.status() != psutil.STATUS_STOPPED:
                time.sleep(_POLL_SECONDS)
        self._trap.started.unlink(missing_ok=True)
        self._feed(2)
        other, since = self._start(host=1), time.monotonic()
        while other.is_alive() and time.monotonic() - since < (
            _TAKEOVER_SECONDS if self._trap.started.exists() else _RUN_SECONDS
        ):
            time.sleep(_POLL_SECONDS)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        self._wait(other)  # its exit code says little: the paused process may have held a lock that it needed

    def _judge(self) -> tuple[list[Comparison], tuple[str, ...]]:
        """What the strictest readers see once it does not improve any more."""
        place, until = self._job.place, time.monotonic() + _JUDGE_SECONDS
        expected = rows(0, self._fed)
        while True:
            try:
                endpoints = [place.endpoint(kind) for kind in self._job.kinds]
                compared = [compare(one.title, expected, one.read(place.addresses), "id") for one in endpoints]
                left = tuple(what for kind in self._job.kinds for what in place.left_over(kind))
                if (not left and all(one.exact for one in compared)) or time.monotonic() > until:
                    return compared, left
            except UnreadableError as error:
                if time.monotonic() > until:
                    return [], (f"cannot be read: {error}",)
            time.sleep(0.1)


def environment() -> None:
    """Variables of this process that drivers inherit; before the first is started."""
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
