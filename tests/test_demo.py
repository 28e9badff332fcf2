"""The demo's parts that need no service: its input, its kills, and above all its checker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from onceward.cli.demo.scenario import MADE, SAID, TARGETS, VICTIMS, _said, expected, generate, judge_target, plan
from onceward.core.errors import ConfigurationError
from onceward.core.operations.comparison import Mismatch, Record
from onceward.testing.machine import make_empty_folder
from onceward.testing.pipeline.timed_faults import FAULTS

if TYPE_CHECKING:
    from pathlib import Path

TOTALS = expected(seed=7, count=200, users=5)


TARGET = ("Kafka", "exactly once")


def judged(*rows):
    return judge_target(TARGET, [Record(row, "") for row in rows], TOTALS)


def rows(*, without: str = "", twice: str = "", wrong: str = ""):
    for total in TOTALS.values():
        if total.order_id == without:
            continue
        row = msgspec.structs.asdict(total)
        if total.order_id == wrong:
            row["total"] += 1
        yield row
        if total.order_id == twice:
            yield row


SOME = next(iter(TOTALS))


def test_the_checker_accepts_exactly_what_must_be_there():
    verdict = judged(*rows())
    assert verdict.exact
    assert verdict.found == verdict.expected == len(TOTALS)


@pytest.mark.parametrize(
    ("fault", "missing", "duplicated", "wrong"), [("without", 1, 0, 0), ("twice", 0, 1, 0), ("wrong", 0, 0, 1)]
)
def test_the_checker_sees_one_missing_one_doubled_and_one_wrong_row(fault, missing, duplicated, wrong):
    verdict = judged(*rows(**{fault: SOME}))
    assert tuple(verdict.count(kind) for kind in Mismatch) == (missing, duplicated, wrong)
    assert not verdict.exact


def test_the_contrast_is_compared_without_running_totals():
    some = [{name: row[name] for name in ("order_id", "user", "cents")} for row in rows()]
    found = [Record(row, "") for row in [*some, some[0]]]
    assert [judge_target(target, found, TOTALS).count(Mismatch.DUPLICATED) for target in TARGETS] == [0, 0, 1, 1]


def test_what_the_driver_says_in_its_log_is_read_line_by_line(tmp_path: Path):
    log = tmp_path / "driver.log"
    log.write_text(f"WARN something\n{SAID}the driver started\n{SAID}the dri")
    with log.open("rb") as written:
        assert list(_said(written)) == ["the driver started"]
        with log.open("a") as more:
            more.write("ver ended\n")
        assert list(_said(written)) == ["the driver ended"]
        assert list(_said(written)) == []


def test_a_row_that_nobody_expected_is_wrong():
    assert judged(*rows(), {"order_id": "o99999999"}).count(Mismatch.WRONG) == 1


def test_the_same_seed_gives_the_same_orders_and_running_totals_that_only_grow():
    assert list(generate(7, 200, 5)) == list(generate(7, 200, 5))
    assert list(generate(7, 200, 5)) != list(generate(8, 200, 5))
    totals: dict[int, int] = {}
    for total in TOTALS.values():
        assert total.total == totals.get(total.user, 0) + total.cents
        totals[total.user] = total.total


def test_cancelled_orders_are_filtered_out():
    placed = {order.order_id for order in generate(7, 200, 5) if order.status == "placed"}
    assert placed == TOTALS.keys()


def test_everything_is_killed_before_the_work_is_done():
    kills = plan(seed=1, driver_kills=5)
    faults = [kill.fault for kill in kills]
    assert faults.count("kill-driver") == 5
    assert set(faults) == set(VICTIMS) <= set(FAULTS)
    assert [kill.share for kill in kills] == sorted(kill.share for kill in kills)
    assert kills[-1].share < 0.9
    assert kills == plan(seed=1, driver_kills=5)


def files_of(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("there", ["thesis.tex", "services/thesis.tex", "driver.log", ".made-by-onceward"])
def test_a_folder_that_no_demo_made_is_refused_with_all_that_is_in_it(tmp_path: Path, there: str):
    home = tmp_path / "home"
    (home / there).parent.mkdir(parents=True)
    (home / there).write_text("years of work")
    with pytest.raises(ConfigurationError, match=r"so nothing was deleted\. Give --home a folder that is new"):
        make_empty_folder(home, "onceward demo", MADE)
    assert files_of(home) == {there: "years of work"}


def test_a_folder_that_a_demo_made_is_emptied_but_only_of_what_demos_make(tmp_path: Path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "thesis.tex").write_text("years of work")
    home = make_empty_folder(tmp_path / "runs" / "home", "onceward demo", MADE)
    (home / "services" / "kafka").mkdir(parents=True)
    (home / "checkpoints").symlink_to(outside)
    (home / "driver.log").write_text("of the last demo")
    make_empty_folder(home, "onceward demo", MADE)
    assert files_of(tmp_path) == {
        "outside/thesis.tex": "years of work",
        "runs/home/.made-by-onceward": "onceward demo\n",
    }
    assert not (home / "services").exists()
    (home / "thesis.tex").write_text("years of work")
    for program in ("onceward demo", "the soak test"):
        with pytest.raises(ConfigurationError, match="did not make"):
            make_empty_folder(home, program, MADE)
    assert (home / "thesis.tex").read_text() == "years of work"


def test_a_file_is_no_home(tmp_path: Path):
    (tmp_path / "notes").write_text("years of work")
    with pytest.raises(ConfigurationError, match="is a file, not a folder"):
        make_empty_folder(tmp_path / "notes", "onceward demo", MADE)
