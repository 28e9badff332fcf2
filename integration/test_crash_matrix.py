"""The crash matrix: what it goes through, and a slice of it on real services. `make crash-matrix` runs all of it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from onceward.core.kit.crash_points import Step
from onceward.testing.services import DevServices

from .crash_matrix.bench import Bench, Outcome, environment
from .crash_matrix.cells import Case, cells, series
from .crash_matrix.drivers import Style
from .crash_matrix.page import document
from .crash_matrix.targets import COMBINATIONS, ON_MARIADB, SIX
from .crash_matrix.trap import Death, Strike
from .mariadb_kit import PROGRAM

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from onceward.testing.services import KafkaServer, PostgresServer

SEED = 88
CASES = 6
MARIADB = ["MariaDB, prepared", "MariaDB, staging"]


@pytest.mark.parametrize("style", Style)
def test_each_cell_comes_before_one_comes_again(style: Style) -> None:
    everything = {cell for cell in cells([style]) if cell.death is not Death.KAFKA}
    assert {cell.step for cell in everything} == set(Step)
    first: list[Case] = []
    for group in series(SEED, style):
        first += [case for case in group if case.cell.death is not Death.KAFKA]
        if len(first) >= len(everything):
            break
    assert {case.cell for case in first} == everything
    assert len(first) == len(everything)


def test_the_page_names_what_was_not_exact() -> None:
    strikes = (Strike(Step.DECIDE_AFTER, 1, Death.KILL), Strike(Step.COMMIT_AFTER, 2, Death.PAUSE))
    good = Outcome("engine-1", Style.ENGINE, "Kafka", strikes, 2, 1.0)
    bad = Outcome("format-2", Style.FORMAT, "files", strikes, 1, 1.0, missing=3, left=("pending files",))
    page = document([good, bad], str(SEED))
    assert "**3 kills in 2 cases, 1 of them not exact (below).**" in page
    assert "| format-2 | format | files | SIGKILL at `decide.after`, pass 1 | 3 | 0 | 0 | pending files |" in page
    assert "engine-1" not in page


@pytest.fixture
def matrix(kafka: KafkaServer, postgres: PostgresServer, dsn: str, tmp_path: Path) -> Iterator[Bench]:
    environment()
    services = DevServices(tmp_path, kafka, postgres)
    with Bench(tmp_path / "bench", services, dsn, tmp_path / "evidence") as started:
        yield started


@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.parametrize(
    ("style", "sinks"),
    [
        (Style.ENGINE, ["all six"]),
        (Style.ENGINE, ["MariaDB, HTTP and Valkey"]),
        (Style.ENGINE, ["HTTP"]),
        pytest.param(Style.EXACTLY_ONCE, ["all six"], marks=pytest.mark.nightly),
        pytest.param(Style.EXACTLY_ONCE, ["MariaDB, HTTP and Valkey"], marks=pytest.mark.nightly),
        pytest.param(Style.FORMAT, list(SIX), marks=pytest.mark.nightly),
        pytest.param(Style.FORMAT, ["MariaDB, prepared", "MariaDB, staging"], marks=pytest.mark.nightly),
    ],
)
def test_after_deaths_at_durable_steps_every_reader_sees_each_row_once(
    matrix: Bench, style: Style, sinks: list[str]
) -> None:
    """Into several targets at once, or one after another through a format; the broker's deaths are the matrix's."""
    if PROGRAM is None and any(ON_MARIADB & set(COMBINATIONS[name]) for name in sinks):
        pytest.skip("MariaDB's server is not installed")
    cases = itertools.chain.from_iterable(series(SEED, style, sinks))
    chosen = [case for case in itertools.islice(cases, 400) if case.cell.death is not Death.KAFKA][:CASES]
    outcomes = [
        outcome
        for _, group in itertools.groupby(chosen, lambda case: case.cell.combination)
        for outcome in matrix.run(list(group))
    ]
    assert [outcome for outcome in outcomes if not outcome.exact] == []
    assert sum(outcome.struck for outcome in outcomes) >= CASES // 2
