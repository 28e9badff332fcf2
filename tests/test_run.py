"""`onceward run`: when a driver is started again, what signals reach it, and with which code it all ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from onceward.cli.main import app, main
from onceward.cli.run import STRATEGIES, Supervisor
from onceward.core import RestartStrategy
from onceward.core.contract.policy import CommitPolicy
from onceward.core.errors import ConfigurationError
from onceward.core.log import LogWriter, RunWriters, open_store, read
from onceward.core.log.run_writers import RUN_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).parents[1]


class Driver:
    """A program that ends with one code after the other, and then with the last one again."""

    def __init__(self, folder: Path, *codes: int) -> None:
        self.lives = folder / "lives"
        self.program = (
            f"import os, sys; codes = {list(codes)}; n = os.path.getsize({str(self.lives)!r}) "
            f"if os.path.exists({str(self.lives)!r}) else 0; open({str(self.lives)!r}, 'a').write('x'); "
            "code = codes[min(n, len(codes) - 1)]; os.kill(os.getpid(), -code) if code < 0 else sys.exit(code)"
        )

    def run(self, strategy: RestartStrategy) -> tuple[int, int]:
        """The code, and how often it was started."""
        code = Supervisor([sys.executable, "-S", "-c", self.program], strategy).run()
        return code, self.lives.stat().st_size


@pytest.mark.parametrize(
    ("codes", "attempts", "expected"),
    [
        ((0,), 3, (0, 1)),
        ((1, 1, 0), 3, (0, 3)),
        ((1, -9, 7), 2, (7, 3)),
        ((-15,), 1, (143, 2)),
        ((1, 2), 9, (2, 2)),
        ((78,), 9, (78, 1)),
    ],
)
def test_a_driver_is_started_again_until_it_ends_well_or_by_a_mistake_or_the_strategy_gives_up(
    tmp_path: Path, codes: Iterable[int], attempts: int, expected: tuple[int, int]
) -> None:
    assert Driver(tmp_path, *codes).run(RestartStrategy.fixed_delay(attempts, 0.0)) == expected


def test_the_strategies_of_the_engine_decide(tmp_path: Path) -> None:
    assert Driver(tmp_path, 1).run(RestartStrategy.none()) == (1, 1)
    assert Driver(tmp_path, 1).run(RestartStrategy.failure_rate(2, 300.0, 0.0)) == (1, 4)


def test_a_program_that_is_not_there_is_a_mistake() -> None:
    with pytest.raises(ConfigurationError, match="the driver cannot be started"):
        Supervisor(["/nowhere/driver"], RestartStrategy.exponential_delay()).run()


PROGRAM = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
signal.signal(signal.SIGUSR1, lambda *_: print("heard", flush=True))
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from onceward.cli.main import main; main()", "run", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)


def test_signals_are_passed_on_and_one_that_ends_the_driver_ends_it_for_good() -> None:
    with start("--", sys.executable, "-S", "-c", PROGRAM) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == "ready\n"
        supervisor.send_signal(signal.SIGUSR1)
        assert supervisor.stdout.readline() == "heard\n"
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(20) == 5


def test_a_signal_in_the_pause_ends_it() -> None:
    with start("--restart", "fixed-delay", "--setting", "delay=600", "false") as supervisor:
        assert supervisor.stderr is not None
        assert "ended with code 1, and is started again in 600.0 s" in supervisor.stderr.readline()
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(20) == 1


DRIVER = """
import sys
from onceward.core.log import LogWriter, RunWriters, open_store
from onceward.core.contract.policy import CommitPolicy
store = open_store(sys.argv[1])
LogWriter(store, "orders", CommitPolicy(), RunWriters.of("orders", store)).start()
print("started", flush=True)
sys.exit(sys.stdin.readline())
"""


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["", "onceward txn abort"])
def test_a_driver_is_not_started_again_beside_a_newer_run(tmp_path: Path, tool: str) -> None:
    """It would drive out the newer run, which would then do the same to it."""
    store = open_store(str(tmp_path))
    with start(
        "--restart",
        "fixed-delay",
        "--setting",
        "delay=0",
        "--setting",
        "attempts=9",
        "--",
        sys.executable,
        "-c",
        DRIVER,
        str(tmp_path),
    ) as supervisor:
        assert supervisor.stdin is not None
        assert supervisor.stdout is not None
        assert supervisor.stderr is not None
        for _ in range(3):
            assert supervisor.stdout.readline() == "started\n"
            supervisor.stdin.write("broken\n")
            supervisor.stdin.flush()
        assert supervisor.stdout.readline() == "started\n"
        newer = LogWriter(store, "orders", CommitPolicy())
        newer.start(tool)
        supervisor.stdin.write("broken\n")
        supervisor.stdin.flush()
        if tool:
            assert supervisor.stdout.readline() == "started\n"
            supervisor.send_signal(signal.SIGTERM)
        _, errors = supervisor.communicate(timeout=20)
    newest = read(store).writer_id == newer.token.writer_id
    assert (newest, supervisor.returncode) == ((False, 143) if tool else (True, 1))
    refused = "and is not started again: pipeline orders: entry 4 is of another run, which has started since"
    assert (refused in errors) == (not tool)


def test_what_a_run_has_noted_must_be_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_VARIABLE, str(tmp_path))
    store = open_store(str(tmp_path / "log"))
    LogWriter(store, "orders", CommitPolicy(), RunWriters.of("orders", store)).start()
    (noted,) = tmp_path.glob("*.json")
    noted.write_text("[")
    with pytest.raises(ConfigurationError, match="End it, start anew"):
        RunWriters.of("orders", store)


def test_a_shell_completes_the_names_of_all_strategies() -> None:
    words = {"_ONCEWARD_COMPLETE": "complete_bash", "COMP_WORDS": "onceward run --restart f", "COMP_CWORD": "3"}
    completed = CliRunner().invoke(app, [], env=words, prog_name="onceward")
    assert completed.output.split() == ["fixed-delay", "failure-rate"]
    with pytest.raises(ConfigurationError, match=f"give one of {', '.join(STRATEGIES)}$"):
        RestartStrategy.of("sometimes", {})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--setting", "delay=1", "true"], "--setting needs --restart"),
        (["--restart", "sometimes", "true"], "give one of none, fixed-delay, failure-rate, exponential-delay"),
        (["--restart", "fixed-delay", "--setting", "attempts=many", "true"], "option attempts is not a whole number"),
        (["--config", "/nowhere/onceward.toml", "true"], "cannot be read"),
        (["/nowhere/driver"], "the driver cannot be started"),
    ],
)
def test_wrong_arguments_are_refused_in_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    monkeypatch.setattr("sys.argv", ["onceward", "run", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
