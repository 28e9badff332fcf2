"""python -m benchmarks.soak [--hours 8] [--rate 200] [--every 45] [--seed 1]: exit code 1 if not exact."""

from __future__ import annotations

import argparse
import os
import platform
import random
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psycopg
from benchmarks.common import machine

from onceward import __version__
from onceward.testing.machine import make_empty_folder
from onceward.testing.pipeline.driver import DriverStart, DriverSupervisor
from onceward.testing.pipeline.endpoints import (
    KAFKA,
    POSTGRES,
    Addresses,
    Endpoint,
    KafkaTopic,
    Table,
    UnreadableError,
)
from onceward.testing.pipeline.timed_faults import FAULTS, NothingToHitError, Scene
from onceward.testing.services import dev_services

from . import page
from .job import SOURCE, TARGET
from .observer import PARTITIONS, Feeder, Observer, Reader, Sample

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onceward.testing.services import DevServices

MADE = ("services", "checkpoint", "driver.log", "samples.json")
"""What a run makes in its folder, and the next one deletes there."""
SAMPLE_SECONDS = 10.0
DRAIN_SECONDS = 300.0
OUTPUTS: tuple[Endpoint, ...] = (
    KafkaTopic(TARGET, PARTITIONS),
    Table(TARGET, "number bigint, fed double precision"),
)


class Found(msgspec.Struct, frozen=True):
    """What a target has at the end."""

    missing: int
    duplicated: int
    left_open: list[str]


class Report(msgspec.Struct, kw_only=True):
    """A whole run."""

    facts: dict[str, str]
    rows: int = 0
    seconds: float = 0
    lives: int = 0
    faults: list[tuple[float, str]] = []
    found: dict[str, Found] = {}

    @property
    def exact(self) -> bool:
        return self.found == {output.title: Found(0, 0, []) for output in OUTPUTS}


class Soak:
    """A run of it.

    Args:
        services: Kafka and PostgreSQL, of this run's own.
        home: Folder for the checkpoint and the drivers' log.
        arguments: Of the command line.
    """

    def __init__(self, services: DevServices, home: Path, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._dice = random.Random(arguments.seed)
        self._addresses = Addresses(home, services.bootstrap_servers, services.dsn)
        assert services.kafka is not None and services.postgres is not None  # noqa: PT018 - for type checkers
        self._servers = {KAFKA: services.kafka, POSTGRES: services.postgres}
        for endpoint in (KafkaTopic(SOURCE, PARTITIONS), *OUTPUTS):
            endpoint.create(self._addresses)
        environment = {**os.environ, **self._addresses.environment()}
        start = DriverStart([sys.executable, "-m", "benchmarks.soak.job"], environment, Path.cwd(), home / "driver.log")
        self._supervisor = DriverSupervisor(start)
        self._feeder = Feeder(services.bootstrap_servers, arguments.rate)
        self._reader = Reader(services.bootstrap_servers)
        self._observer = Observer(self._addresses, self._supervisor, self._feeder, self._reader)
        self._samples: list[Sample] = []
        self._next_sample = 0.0

    def run(self, report: Report) -> list[Sample]:
        """Feed and strike, wait until all is through, and compare."""
        try:
            with self._reader.reading():
                with self._feeder.feeding():
                    self._strike(report)
                self._drain()
            report.rows, report.seconds = self._feeder.fed, self._now
            report.lives = len(self._supervisor.exit_codes) + 1
        finally:
            self._supervisor.stop(20.0)
        report.found = self._compare()
        return self._samples

    @property
    def _now(self) -> float:
        return time.monotonic() - self._observer.began

    def _strike(self, report: Report) -> None:
        names = sorted(name for name in FAULTS if name != "clean" and not name.startswith("cut-"))  # without a proxy
        until = self._arguments.hours * 3600
        while self._now < until:
            self._watch(self._now + self._dice.uniform(0.5, 1.5) * self._arguments.every)
            self._supervisor.stop_others(1.0)
            name, began = self._dice.choice(names), self._now
            scene = Scene(self._supervisor, self._servers, self._addresses, self._dice, time.monotonic() + 5, print)
            try:
                FAULTS[name](scene)
            except NothingToHitError as error:
                print(f"{began:.0f} s: {name}: {error}", flush=True)
            else:
                report.faults.append((round(began, 1), name))

    def _watch(self, until: float) -> None:
        while self._now < until:
            if self._now >= self._next_sample:
                self._samples.append(self._observer.sample())
                self._next_sample = self._now + SAMPLE_SECONDS
            time.sleep(0.2)

    def _drain(self) -> None:
        until = self._now + DRAIN_SECONDS
        while self._now < until:
            newest = self._observer.sample()
            self._samples.append(newest)
            if min(newest.topic_rows, newest.table_rows or 0) >= self._feeder.fed and not newest.prepared:
                self._watch(self._now + SAMPLE_SECONDS)  # for what comes too often
                return
            self._watch(self._now + 1)

    def _compare(self) -> dict[str, Found]:
        with psycopg.connect(self._addresses.dsn) as connection:
            rows: dict[int, int] = dict(
                connection.execute(f"SELECT number, count(*) FROM {TARGET} GROUP BY 1").fetchall()
            )
        counted: tuple[Mapping[int, int], ...] = (self._reader.seen, rows)
        return {output.title: self._verdict(output, counts) for output, counts in zip(OUTPUTS, counted, strict=True)}

    def _verdict(self, output: Endpoint, counts: Mapping[int, int]) -> Found:
        try:
            left = output.left_open(self._addresses)
        except UnreadableError as error:
            left = [str(error)]
        fed = self._feeder.fed
        missing = sum(number not in counts for number in range(fed))
        return Found(missing, sum(counts.values()) - len(counts), left)


def main() -> int:
    """Run it, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=8.0, help="for which rows are fed")
    parser.add_argument("--rate", type=float, default=200.0, help="rows per second")
    parser.add_argument("--every", type=float, default=45.0, help="seconds between two faults, on average")
    parser.add_argument("--seed", type=int, default=1, help="of the faults")
    parser.add_argument("--home", type=Path, default=Path(".run/soak"), help="folder: new, empty, or an earlier run's")
    parser.add_argument("--note", help="what else the machine did meanwhile, for the page")
    arguments = parser.parse_args()
    home = arguments.home.absolute()
    make_empty_folder(home, "the soak test", MADE)
    report = Report(
        facts={
            "date": time.strftime("%Y-%m-%d"),
            "machine": machine(),
            "versions": f"onceward {__version__}, pyspark {version('pyspark')}, Python {platform.python_version()}",
            "rows fed per second": f"{arguments.rate:g}",
            "seconds between faults, on average": f"{arguments.every:g}",
            "seed": str(arguments.seed),
            **({"beside it": arguments.note} if arguments.note else {}),
        }
    )
    with dev_services(home / "services") as services:
        samples = Soak(services, home, arguments).run(report)
    (home / "samples.json").write_bytes(msgspec.json.encode({"report": report, "samples": samples}))
    page.write(report, samples)
    print(f"{report.rows} rows, {len(report.faults)} faults: {'exact' if report.exact else report.found}")
    return int(not report.exact)


if __name__ == "__main__":
    sys.exit(main())
