"""A service is found again, ends with its children, and does not outlive its owner unless detached."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import psutil
import pytest

from onceward.core.errors import ConfigurationError
from onceward.testing.machine import DevServiceError, accepts_connections, free_port
from onceward.testing.services.postgres import _drop_stale_lock
from onceward.testing.services.service import Service

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(__file__).parent.parent / "src"
pytestmark = pytest.mark.slow
PARENT = "import subprocess, sys, time; subprocess.Popen(['sleep', '60'], start_new_session=True); "
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
OWNER = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests in the background ignores it
import sys, time
from pathlib import Path
from tests.test_dev_process import Sleeper
sleeper = Sleeper(Path(sys.argv[1]), detached=sys.argv[2] == "detached")
sleeper.start()
print(sleeper.pid, flush=True)
time.sleep(60)
"""


class Sleeper(Service):
    """A program that says that it is up, and sleeps."""

    title: ClassVar[str] = "Sleeper"
    address_name: ClassVar[str] = "address"
    stop_signals: ClassVar[Any] = ((signal.SIGTERM, 0.1), (signal.SIGTERM, 0.1))
    program = ""

    @property
    def address(self) -> str:
        return str(self.settings["port"])

    def answers(self) -> bool:
        return "up" in self.log.read_text()

    def _new_settings(self) -> dict[str, Any]:
        return {"port": free_port()}

    def _prepare(self) -> list[str | Path]:
        program = self.program + "import time; print('up', flush=True); time.sleep(60)"
        return [sys.executable, "-c", program, self.address]


class Listener(Sleeper):
    """A small real server: accepts connections on its port."""

    title: ClassVar[str] = "Listener"
    stop_signals: ClassVar[Any] = ((signal.SIGTERM, 5.0),)
    program = "import socket, sys; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); "

    def answers(self) -> bool:
        return accepts_connections(self.settings["port"])


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Sleeper]:
    made = Sleeper(tmp_path / "sleeper")
    yield made
    made.kill()


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    made = Listener(tmp_path / "listener")
    yield made
    made.kill()


def started(service: Sleeper, program: str = "") -> psutil.Process:
    service.program = program
    service.start()
    service.wait_ready()
    return psutil.Process(service.pid)


def ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_another_object_finds_and_ends_the_same_process(sleeper: Sleeper) -> None:
    sleeper.start()
    other = Sleeper(sleeper.folder, detached=True)
    assert (other.address, other.pid) == (sleeper.address, sleeper.pid)
    other.kill()
    assert not sleeper.running


def test_kill_takes_children_in_sessions_of_their_own_along(sleeper: Sleeper) -> None:
    (child,) = started(sleeper, PARENT).children()
    sleeper.kill()
    assert ended(child)


def test_stop_goes_from_signal_to_signal_and_ends_with_sigkill(sleeper: Sleeper) -> None:
    stubborn = started(sleeper, STUBBORN)
    sleeper.stop()
    assert not stubborn.is_running()
    assert not sleeper.running


def test_a_process_id_used_again_by_another_process_is_not_taken_for_ours(sleeper: Sleeper) -> None:
    sleeper.folder.mkdir()
    (sleeper.folder / "process.json").write_text(f'{{"pid": {os.getpid()}, "created": 1.0}}')
    assert not sleeper.running
    sleeper.kill()
    assert list(sleeper.folder.glob("*.json")) == []


@pytest.mark.parametrize("fatal", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_an_owned_process_ends_with_its_owner_however_that_ends(tmp_path: Path, fatal: signal.Signals) -> None:
    owner, service = start_owner(tmp_path, "owned")
    owner.send_signal(fatal)
    owner.wait(30)
    psutil.wait_procs([service], timeout=30)
    assert ended(service)


def test_a_detached_process_outlives_its_owner(tmp_path: Path) -> None:
    owner, service = start_owner(tmp_path, "detached")
    owner.kill()
    owner.wait(30)
    with pytest.raises(psutil.TimeoutExpired):
        service.wait(0.5)
    Sleeper(tmp_path, detached=True).kill()
    assert ended(service)


def start_owner(folder: Path, how: str) -> tuple[subprocess.Popen[str], psutil.Process]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), str(SOURCE.parent)])}
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder), how],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    assert owner.stdout is not None
    with owner.stdout:
        return owner, psutil.Process(int(owner.stdout.readline()))


def test_a_killed_service_comes_back_at_its_address(listener: Listener) -> None:
    listener.start()
    listener.wait_ready()
    pid, address = listener.pid, listener.address
    listener.kill()
    assert not listener.running
    assert not listener.answers()
    listener.restart()
    assert (listener.answers(), listener.address) == (True, address)
    assert listener.pid != pid


def test_start_and_stop_can_be_repeated(listener: Listener) -> None:
    listener.stop()
    listener.start()
    pid = listener.pid
    listener.start()
    assert listener.pid == pid
    listener.stop()
    listener.stop()
    assert not listener.running


def test_a_service_that_cannot_start_says_the_end_of_its_log(tmp_path: Path) -> None:
    broken = Listener(tmp_path / "broken")
    broken.program = "raise SystemExit('no such setting: colour')"
    broken.start()
    with pytest.raises(DevServiceError, match=r"(?s)Listener is not running.*no such setting: colour"):
        broken.wait_ready(timeout=20)


def test_a_deleted_service_starts_as_new(listener: Listener) -> None:
    listener.start()
    listener.delete()
    assert not listener.folder.exists()
    listener.restart()
    assert listener.answers()


@pytest.mark.parametrize("file", ["kafka.py", "settings.json"])
def test_a_folder_with_other_files_is_neither_used_nor_deleted(tmp_path: Path, file: str) -> None:
    """A project's own folder `kafka` stands where `onceward dev` keeps its broker."""
    listener = Listener(tmp_path / "kafka")
    listener.folder.mkdir()
    (listener.folder / file).write_text('"years of work"')
    for action in (listener.start, listener.delete):
        with pytest.raises(ConfigurationError, match="holds files that are not Listener's, so nothing was changed"):
            action()
    assert [path.name for path in listener.folder.iterdir()] == [file]


def test_deleting_a_service_that_was_never_started_leaves_nothing(tmp_path: Path) -> None:
    listener = Listener(tmp_path / "listener")
    listener.delete()
    assert not listener.folder.exists()
    listener.stop()
    listener.delete()
    assert not listener.folder.exists()


def test_what_a_service_was_told_to_keep_secret_is_readable_by_its_owner_only(listener: Listener) -> None:
    assert listener.settings
    assert (listener.folder / "settings.json").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("state", ["gone", "another program", "dead but not waited for"])
def test_a_database_lock_file_of_no_living_server_is_dropped(tmp_path: Path, state: str) -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    if state == "gone":
        child.wait()
    pid = os.getpid() if state == "another program" else child.pid
    lock = tmp_path / "postmaster.pid"
    lock.write_text(f"{pid}\n{tmp_path}\n")
    _drop_stale_lock(lock)
    child.wait()
    assert not lock.exists()
