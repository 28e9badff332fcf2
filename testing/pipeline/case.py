"""One case of a pipeline: rows go in over time, a fault strikes, the driver is started again, the judge reads.

A fifth of the rows goes in before the driver is started; when something of it has come out, the others follow over
`feed_seconds`, and the fault strikes at a seeded moment of these. Then the outputs have `timeout` seconds to become
complete, and `quiet` seconds to stay so.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import urlsplit

from onceward.core.errors import ConfigurationError
from onceward.core.operations.comparison import Verdict, compare

from ..machine import end_of
from .driver import DriverStart, DriverSupervisor, arguments_of
from .endpoints import KAFKA, POSTGRES, Addresses, Endpoint, UnreadableError
from .servers import empty_kafka, new_database
from .spec import ReferenceRun, count_rows, from_function
from .timed_faults import NothingToHitError, NotReachedError, PlannedFault, Scene

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from onceward.core.operations.comparison import Record, Row

    from .servers import Servers
    from .spec import PipelineSpec

_POLL_SECONDS: Final = 0.2
_LOOK_SECONDS: Final = 0.1
_LOG_LINES: Final = 25
_FIRST_SHARE: Final = 0.2
_FEEDS: Final = 20
_LIVES_BEFORE_OUTPUT: Final = 3
_RECORD_QUIET: Final = 5


class Case:
    """One case of a pipeline.

    Attributes:
        addresses: Addresses of its services and files.
        verdict: Verdict at its end; None before.
        nothing_hit: Reason why the fault found nothing to hit; empty if it did.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        fault: PlannedFault,
        servers: Servers,
        folder: Path,
        stack: ExitStack,
        *,
        reference: ReferenceRun | None = None,
    ) -> None:
        self._spec, self._fault, self._reference = spec, fault, reference
        self._expectation = from_function(spec.expected) if reference is None else lambda *_: reference.outputs
        self._name = type(spec).__name__
        self._dice = Random(fault.id)  # noqa: S311 - repeatable on purpose
        self._inputs, self._outputs = spec.endpoints("inputs"), spec.endpoints("outputs")
        endpoints = [*self._inputs, *self._outputs]
        running = {name: servers.get(name, spec.services) for name in {e.needs for e in endpoints} if name}
        self._servers = {name: server for name, (server, _) in running.items()}
        self._proxies = {name: proxy for name, (_, proxy) in running.items() if fault.needs_proxies}
        self.addresses = self._set_up(folder, stack)
        for endpoint in endpoints:
            endpoint.create(self.addresses)
        self._supervisor = DriverSupervisor(self._start(folder), fault.environment)
        stack.callback(self._supervisor.stop, spec.stop_seconds)
        self._fed = 0
        self._notes: list[str] = []
        self._began = time.monotonic()
        self.verdict: Verdict | None = None
        self.nothing_hit = ""
        self._not_reached = ""

    def _set_up(self, folder: Path, stack: ExitStack) -> Addresses:
        bootstrap_servers = dsn = ""
        if KAFKA in self._servers:
            bootstrap_servers = self._servers[KAFKA].bootstrap_servers
            empty_kafka(bootstrap_servers)
        if POSTGRES in self._servers:
            dsn = stack.enter_context(new_database(self._servers[POSTGRES].dsn))
        return Addresses(folder, bootstrap_servers, dsn)

    def _start(self, folder: Path) -> DriverStart:
        command = inspect.getattr_static(type(self._spec), "command", None)  # an instance would bind a function
        if command is None:
            raise ConfigurationError(f"{self._name} has no command: set command = [program, argument, …]")
        command = command.__func__ if isinstance(command, staticmethod) else command
        told = self._addresses_of_driver().environment()
        variables = {**os.environ, "PYTHONUNBUFFERED": "1", **told, **self._spec.environment}
        if callable(command):
            variables["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        here = Path(inspect.getfile(type(self._spec))).parent
        return DriverStart(arguments_of(command), variables, here, folder / "driver.log")

    def _addresses_of_driver(self) -> Addresses:
        """Return the case's addresses, or those of the proxies before its servers."""
        found = self.addresses
        if KAFKA in self._proxies:
            found = replace(found, bootstrap_servers=self._proxies[KAFKA].address)
        if POSTGRES in self._proxies:
            dsn = urlsplit(found.dsn)
            login = dsn.netloc.rpartition("@")[0]
            found = replace(found, dsn=dsn._replace(netloc=f"{login}@{self._proxies[POSTGRES].address}").geturl())
        return found

    def run(self) -> str:
        """Run the case; return a sentence that says what is wrong, or ""."""
        limit = self._spec.max_blocked_seconds
        with ExitStack() as watch:
            rest, problem = self._begin()
            if not problem:
                with self._feeding(rest) as until:
                    self._inject(until)
                    blocked = _BlockedReaders(self._outputs if limit is not None else [], self.addresses)
                    watch.enter_context(blocked)
                self._supervisor.stop_others(self._spec.stop_seconds)
                problem = self._other_inputs()
                if not problem and not self._settled(self._spec.quiet, lambda verdict: not verdict.may_improve):
                    problem = f"{self._name} is not exactly once, {self._spec.timeout:g} s after the last row was fed"
            if not problem and not self._supervisor.exit_codes:  # it may have crashed in the last epochs
                problem = self._not_reached
        self._supervisor.stop(self._spec.stop_seconds)
        try:
            self.verdict = self._judged()
        except UnreadableError as error:
            return problem or str(error)
        if problem or not self.verdict.exact:
            return problem or f"{self._name} is not exactly once"
        if limit is not None and blocked.longest > limit:
            return f"readers were blocked for {blocked.longest:.1f} s after the fault, not {limit:g}: {blocked.where}"
        return ""

    def _other_inputs(self) -> str:
        if self._reference is None or count_rows(self._rows_in()) == self._reference.inputs:
            return ""
        return f"other rows went into {self._name} than in the run without faults: is row() random?"

    def record(self) -> tuple[ReferenceRun | None, str]:
        """Run until the outputs are unchanged for five times `quiet` seconds; return them, or a problem."""
        rest, problem = self._begin()
        if not problem:
            with self._feeding(rest):
                pass
            if not self._settled(_RECORD_QUIET * self._spec.quiet, lambda verdict: not verdict.left_open):
                problem = f"{self._name} still changes its outputs {self._spec.timeout:g} s after the last row was fed"
        self._supervisor.stop(self._spec.stop_seconds)
        if problem:
            return None, f"the run without faults, with which the others are compared, failed: {problem}"
        outputs = [[record.row for record in endpoint.read(self.addresses)] for endpoint in self._outputs]
        return ReferenceRun(count_rows(self._rows_in()), list(outputs)), ""

    def _begin(self) -> tuple[Sequence[Row], str]:
        """Feed the first rows and wait for output; return the other rows, and a problem if there is one."""
        rows = [self._spec.row(number) for number in range(self._spec.row_count)]
        first = round(len(rows) * _FIRST_SHARE)
        self._feed(rows[:first])
        return rows[first:], self._wait_for_output()

    def report(self) -> str:
        """Describe the run of a case that failed."""
        head = f"fault {self._fault.name}, seed {self._fault.seed}; {self._fed} rows were fed"
        codes = f"exit codes of the driver: {', '.join(map(str, self._supervisor.exit_codes))}"
        verdict = self.verdict.lines() if self.verdict else []
        words = end_of(self._supervisor.start.log, _LOG_LINES)
        return "\n".join([head, *self._notes, codes, *verdict, f"the end of the driver's log:\n{words}"])

    def _note(self, text: str) -> None:
        self._notes.append(f"{time.monotonic() - self._began:6.1f} s  {text}")

    def _feed(self, rows: Sequence[Row]) -> None:
        for number, endpoint in enumerate(self._inputs):
            offset = (number - self._fed) % len(self._inputs)
            endpoint.feed(self.addresses, rows[offset :: len(self._inputs)])
        self._fed += len(rows)

    @contextmanager
    def _feeding(self, rows: Sequence[Row]) -> Iterator[float]:
        """Feed rows while the block runs; gives when that ends, in seconds of time.monotonic()."""
        began = time.monotonic()
        size = max(1, len(rows) // _FEEDS)
        parts = [rows[at : at + size] for at in range(0, len(rows), size)]

        def feed() -> None:
            for number, part in enumerate(parts):
                time.sleep(max(0.0, began + number * self._spec.feed_seconds / len(parts) - time.monotonic()))
                self._feed(part)

        with ThreadPoolExecutor(1) as pool:
            feeding = pool.submit(feed)
            yield began + self._spec.feed_seconds
        feeding.result()

    def _inject(self, until: float) -> None:
        time.sleep(self._dice.uniform(0, self._fault.moments) * self._spec.feed_seconds)
        scene = Scene(self._supervisor, self._servers, self.addresses, self._dice, until, self._note, self._proxies)
        try:
            self._fault.inject(scene)
        except NothingToHitError as error:
            self.nothing_hit = str(error)
        except NotReachedError as error:
            self._not_reached = str(error)

    def _wait_for_output(self) -> str:
        deadline, unreadable = time.monotonic() + self._spec.timeout, ""
        while True:
            try:
                verdict = self._judged()
            except UnreadableError as error:
                unreadable = f"; {error}"
            else:
                if any(comparison.found for comparison in verdict.comparisons) or verdict.exact:
                    return ""
                unreadable = ""
            lives = len(self._supervisor.exit_codes)
            if lives > _LIVES_BEFORE_OUTPUT and any(self._supervisor.exit_codes):
                return f"{self._name} does not work without faults: the driver ended {lives} times before any output"
            if time.monotonic() > deadline:
                nothing = f"nothing came out of {self._name} within {self._spec.timeout:g} s"
                return f"{nothing}, {self._before_output()}{unreadable}"
            time.sleep(_POLL_SECONDS)

    def _before_output(self) -> str:
        """Describe the run so far; a fault at a step kills the first driver as soon as it gets there."""
        codes = self._supervisor.exit_codes
        if not codes:
            return "before any fault, and the driver runs"
        return f"and the driver ended with exit code {', '.join(map(str, codes))}"

    def _settled(self, quiet: float, complete: Callable[[Verdict], bool]) -> bool:
        """Wait until the outputs are complete and have not changed for so many seconds; False if they never are."""
        deadline, last, since = time.monotonic() + self._spec.timeout, None, 0.0
        while time.monotonic() < deadline:
            try:
                verdict = self._judged()
            except UnreadableError as error:
                self._note(str(error))
                verdict = None
            if verdict is None or not complete(verdict) or verdict != last:
                last, since = verdict, time.monotonic()
            elif time.monotonic() - since >= quiet:
                return True
            time.sleep(_POLL_SECONDS)
        return False

    def _rows_in(self) -> list[Record]:
        return [record for endpoint in self._inputs for record in endpoint.read(self.addresses)]

    def _judged(self) -> Verdict:
        inputs = self._rows_in()
        sources: defaultdict[str, list[str]] = defaultdict(list)
        for record in inputs:
            if self._spec.key is not None:
                sources[str(record.row.get(self._spec.key))].append(record.position)
        expected = self._expectation(inputs, self._outputs)
        return Verdict(
            tuple(
                compare(output.title, rows, output.read(self.addresses), self._spec.key)
                for output, rows in zip(self._outputs, expected, strict=True)
            ),
            tuple(what for output in self._outputs for what in output.left_open(self.addresses)),
            self._spec.key,
            sources,
        )


class _BlockedReaders:
    """A watcher of how long (`longest`) readers of outputs are blocked at one place (`where`).

    What blocks them is told apart by its words, which name the transaction or the offset: as long as an output says the
    same, it has not moved on.
    """

    def __init__(self, outputs: Sequence[Endpoint], addresses: Addresses) -> None:
        self.longest, self.where = 0.0, ""
        self._outputs, self._addresses = outputs, addresses
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="blocked readers", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        since: dict[str, float] = {}
        while not self._stopped.wait(_LOOK_SECONDS):
            with suppress(UnreadableError):
                found = [what for output in self._outputs for what in output.left_open(self._addresses)]
                now = time.monotonic()
                since = {what: since.get(what, now) for what in found}
                for what, began in since.items():
                    if now - began > self.longest:
                        self.longest, self.where = now - began, what
