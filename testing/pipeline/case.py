"""One case of a pipeline: rows go in over time, a fault strikes, the driver is started again, the judge reads.

A fifth of the rows goes in before the driver is started; when something of it has come out, the others follow over
`feed_seconds`, and the fault strikes at a seeded moment of these. Then the outputs have `timeout` seconds to become
complete, and `quiet` seconds to stay so.
"""

from __future__ import annotations

import inspect
import os
import shlex
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from onceward.core.errors import ConfigurationError

from .driver import Command, Start, Supervisor, arguments_of
from .endpoints import KAFKA, POSTGRES, Addresses, Endpoint, UnreadableError
from .faults import FAULTS, Inject, NothingToHitError, PlannedFault, Scene, planned_faults
from .judge import Verdict, compare
from .servers import empty_kafka, new_database

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pytest

    from .endpoints import Row
    from .servers import Servers

_POLL_SECONDS: Final = 0.2
_FIRST_SHARE: Final = 0.2
_FEEDS: Final = 20
_LIVES_BEFORE_OUTPUT: Final = 3


class PipelineTest:
    """Test a pipeline's driver program: subclass it, and say how it starts, what it reads and what must come out.

    The driver is restarted whenever it ends. It gets KAFKA_BOOTSTRAP_SERVERS, DATABASE_URL and PIPELINE_FOLDER (for
    checkpoints) in environment variables, and runs in the folder of the test's file.

    Attributes:
        command: The program and its arguments, or a function at the top level of a file.
        inputs: One or several; the n-th row goes to input n modulo their number.
        outputs: One or several.
        services: "containers", "local" for processes on this machine, or "auto": containers if Docker answers.
        key: Column that identifies a row in inputs and outputs, so that offending rows are traced to their source.
        row_count: Number of rows that are fed.
        feed_seconds: How long they are fed, after the first output was seen.
        timeout: Seconds for the first output, and for all output after the fault.
        quiet: Seconds for which the outputs must not change at the end.
        stop_seconds: How long the driver has to end after SIGTERM.
        uses_onceward: Also crash the driver at onceward's durable steps (ONCEWARD_CRASH_AT).
        environment: Further variables for the driver.
        faults: The faults to choose from, by name.
    """

    command: Command
    inputs: Endpoint | Sequence[Endpoint]
    outputs: Endpoint | Sequence[Endpoint]
    services: Literal["auto", "containers", "local"] = "auto"
    key: str | None = "id"
    row_count: int = 300
    feed_seconds: float = 3.0
    timeout: float = 120.0
    quiet: float = 1.0
    stop_seconds: float = 5.0
    uses_onceward: bool = False
    environment: ClassVar[Mapping[str, str]] = {}
    faults: ClassVar[Mapping[str, Inject]] = FAULTS

    def row(self, number: int) -> Row:
        """Return the row with this number, counted from 0."""
        return {"id": number, "value": f"v{number}"}

    def expected(self, rows: list[Row]) -> Sequence[Row] | Mapping[str, Sequence[Row]]:
        """Return what must come out of these rows: the rows of every output, or a mapping from output names to rows.

        Args:
            rows: What the inputs hold, by input, partition and offset.
        """
        return rows

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make one case for each fault of the selection that `--faults` names."""
        if "fault" in metafunc.fixturenames:
            level = metafunc.config.getoption("--faults")
            needs = frozenset(endpoint.needs for endpoint in [*_several(self, "inputs"), *_several(self, "outputs")])
            planned = planned_faults(level, self.faults, needs, steps=self.uses_onceward)
            metafunc.parametrize("fault", planned, ids=lambda fault: fault.id)

    def test_exactly_once(
        self, fault: PlannedFault, pipeline_servers: Servers, tmp_path: Path, request: pytest.FixtureRequest
    ) -> None:
        """Each row takes effect exactly once in every output, whatever goes wrong, and nothing is left open."""
        import pytest  # noqa: PLC0415 - the demo uses the other parts of the kit without it

        from ..plugin import NOT_APPLICABLE  # noqa: PLC0415

        repeat = f"pytest {shlex.quote(request.node.nodeid)} --faults {request.config.getoption('--faults')}"
        with ExitStack() as stack:
            case = Case(self, fault, pipeline_servers, tmp_path, stack)
            problem = case.run()
            if problem:
                pytest.fail(f"{problem}\n\n{case.report()}\nrepeat it: {repeat}", pytrace=False)
            if case.nothing_hit:
                pytest.skip(f"{NOT_APPLICABLE}{case.nothing_hit}")


def _several(spec: PipelineTest, name: str) -> list[Endpoint]:
    given = getattr(spec, name, [])
    found = [given] if isinstance(given, Endpoint) else list(given)
    if not found:
        raise ConfigurationError(
            f"{type(spec).__name__} has no {name}: set {name} = KafkaTopic(…), Table(…) or another"
        )
    return found


class Case:
    """One case of a pipeline.

    Attributes:
        addresses: Where its services and files are.
        verdict: What was found at its end; None before.
        nothing_hit: Why the fault found nothing to hit; "" if it did.
    """

    def __init__(
        self, spec: PipelineTest, fault: PlannedFault, servers: Servers, folder: Path, stack: ExitStack
    ) -> None:
        self._spec, self._fault = spec, fault
        self._name = type(spec).__name__
        self._dice = Random(fault.id)  # noqa: S311 - repeatable on purpose
        self._inputs, self._outputs = _several(spec, "inputs"), _several(spec, "outputs")
        endpoints = [*self._inputs, *self._outputs]
        self._servers = {name: servers.get(name, spec.services) for name in {e.needs for e in endpoints} if name}
        self.addresses = self._set_up(folder, stack)
        for endpoint in endpoints:
            endpoint.create(self.addresses)
        self._supervisor = Supervisor(self._start(folder), fault.environment)
        stack.callback(self._supervisor.stop, spec.stop_seconds)
        self._fed = 0
        self._notes: list[str] = []
        self._began = time.monotonic()
        self.verdict: Verdict | None = None
        self.nothing_hit = ""

    def _set_up(self, folder: Path, stack: ExitStack) -> Addresses:
        bootstrap_servers = dsn = ""
        if KAFKA in self._servers:
            bootstrap_servers = self._servers[KAFKA].bootstrap_servers
            empty_kafka(bootstrap_servers)
        if POSTGRES in self._servers:
            dsn = stack.enter_context(new_database(self._servers[POSTGRES].dsn))
        return Addresses(folder, bootstrap_servers, dsn)

    def _start(self, folder: Path) -> Start:
        command = inspect.getattr_static(type(self._spec), "command", None)  # an instance would bind a function
        if command is None:
            raise ConfigurationError(f"{self._name} has no command: set command = [program, argument, …]")
        command = command.__func__ if isinstance(command, staticmethod) else command
        variables = {**os.environ, "PYTHONUNBUFFERED": "1", **self.addresses.environment(), **self._spec.environment}
        if callable(command):
            variables["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        here = Path(inspect.getfile(type(self._spec))).parent
        return Start(arguments_of(command), variables, here, folder / "driver.log")

    def run(self) -> str:
        """What is wrong, in a sentence; nothing if nothing is."""
        rows = [self._spec.row(number) for number in range(self._spec.row_count)]
        first = round(len(rows) * _FIRST_SHARE)
        self._feed(rows[:first])
        problem = self._wait_for_output()
        if not problem:
            with self._feeding(rows[first:]) as until:
                self._inject(until)
            self._supervisor.stop_others(self._spec.stop_seconds)
            problem = self._wait_until_settled()
        self._supervisor.stop(self._spec.stop_seconds)
        self.verdict = self._judged()
        return problem or ("" if self.verdict.exact else f"{self._name} is not exactly once")

    def report(self) -> str:
        """What happened, for a case that failed."""
        head = f"fault {self._fault.name}, seed {self._fault.seed}; {self._fed} rows were fed"
        codes = f"exit codes of the driver: {', '.join(map(str, self._supervisor.exit_codes))}"
        verdict = self.verdict.lines() if self.verdict else []
        words = self._supervisor.start.last_words()
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
        scene = Scene(self._supervisor, self._servers, self.addresses, self._dice, until, self._note)
        try:
            self._fault.inject(scene)
        except NothingToHitError as error:
            self.nothing_hit = str(error)

    def _wait_for_output(self) -> str:
        deadline = time.monotonic() + self._spec.timeout
        while True:
            verdict = self._judged()
            if any(comparison.found for comparison in verdict.comparisons) or verdict.exact:
                return ""
            lives = len(self._supervisor.exit_codes)
            if lives > _LIVES_BEFORE_OUTPUT and any(self._supervisor.exit_codes):
                return f"{self._name} does not work without faults: the driver ended {lives} times before any output"
            if time.monotonic() > deadline:
                return f"nothing came out of {self._name} within {self._spec.timeout:g} s, before any fault"
            time.sleep(_POLL_SECONDS)

    def _wait_until_settled(self) -> str:
        """Wait until the outputs are complete and do not change any more; what is wrong if they do not get there."""
        deadline, last, since = time.monotonic() + self._spec.timeout, None, 0.0
        while time.monotonic() < deadline:
            try:
                verdict = self._judged()
            except UnreadableError as error:
                self._note(str(error))
                verdict = None
            if verdict is None or verdict.may_improve or verdict != last:
                last, since = verdict, time.monotonic()
            elif time.monotonic() - since >= self._spec.quiet:
                return ""
            time.sleep(_POLL_SECONDS)
        return f"{self._name} is not exactly once, {self._spec.timeout:g} s after the last row was fed"

    def _judged(self) -> Verdict:
        inputs = [record for endpoint in self._inputs for record in endpoint.read(self.addresses)]
        sources: defaultdict[str, list[str]] = defaultdict(list)
        for record in inputs:
            if self._spec.key is not None:
                sources[str(record.row.get(self._spec.key))].append(record.position)
        expected = self._spec.expected([record.row for record in inputs])
        return Verdict(
            tuple(
                compare(o.title, self._rows_for(o, expected), o.read(self.addresses), self._spec.key)
                for o in self._outputs
            ),
            tuple(what for output in self._outputs for what in output.left_open(self.addresses)),
            self._spec.key,
            sources,
        )

    def _rows_for(self, output: Endpoint, expected: Sequence[Row] | Mapping[str, Sequence[Row]]) -> Sequence[Row]:
        if not isinstance(expected, Mapping):
            return expected
        if output.name not in expected:
            raise ConfigurationError(f"expected() of {self._name} says nothing of {output.title}: add {output.name!r}")
        return expected[output.name]
