"""Commands find a decision log below a folder of checkpoints, as `status` does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from onceward.cli.main import app
from onceward.core.contract.policy import CommitPolicy
from onceward.core.errors import ConfigurationError, NoDecisionLogError
from onceward.core.log import DirectoryStore, LogWriter

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two checkpoints below a folder."""
    for name in ("orders", "totals"):
        LogWriter(DirectoryStore(tmp_path / "checkpoints" / name / "onceward"), name, CommitPolicy()).start()
    return tmp_path / "checkpoints"


def run(*words: str | Path) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def test_checkpoints_finds_the_log_of_the_named_pipeline_below_a_folder(folder: Path) -> None:
    assert "totals" in run("checkpoints", "--store", folder, "--pipeline", "totals")


def test_checkpoints_finds_the_only_log_below_a_folder(folder: Path) -> None:
    (folder / "totals").rename(folder.parent / "totals")
    assert run("checkpoints", "--store", folder).startswith("orders: running")


def test_several_logs_are_listed_for_a_choice(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"holds the decision logs of orders, totals: give --pipeline"):
        run("checkpoints", "--store", folder)


def test_a_folder_without_that_pipeline_says_so(folder: Path) -> None:
    with pytest.raises(NoDecisionLogError):
        run("checkpoints", "--store", folder, "--pipeline", "payments")


def test_verify_takes_its_store_as_an_argument_or_as_an_option_and_not_twice(folder: Path) -> None:
    where = str(folder / "orders")
    with pytest.raises(ConfigurationError, match="given twice"):
        run("verify", where, "--store", where, "--target", "files:/tmp/x")
    asked = ("--target", f"files:{folder}")
    told = [CliRunner().invoke(app, ["verify", *words, *asked]) for words in ((where,), ("--store", where))]
    assert (told[0].output, str(told[0].exception)) == (told[1].output, str(told[1].exception))
