"""A background process is found again, ends with its children, and does not outlive its owner unless detached."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from onceward.testing.services.postgres import _drop_stale_lock
from onceward.testing.services.process import BackgroundProcess
from onceward.testing.services.service import Service

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, ClassVar

from onceward.testing.services.machine import DevServiceError, accepts_connections, free_port

SOURCE = Path(__file__).parent.parent / "src"
PARENT = "import subprocess, sys; subprocess.Popen(['sleep', '60'], start_new_session=True); print('up', flush=True); "
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
OWNER = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests in the background ignores it
import sys, time
from pathlib import Path
from onceward.testing.services.process import BackgroundProcess
process = BackgroundProcess(Path(sys.argv[1]) / "process.json", detached=sys.argv[2] == "detached")
process.launch(["sleep", "60"], log=Path(sys.argv[1]) / "log")
print(process.find().pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[BackgroundProcess]:
    made = BackgroundProcess(tmp_path / "process.json", detached=False)
    yield made
    made.kill()


def launch_python(process: BackgroundProcess, program: str) -> psutil.Process:
    """Launches a Python program and waits for its first line."""
    log = process.record.with_name("log")
    process.launch([sys.executable, "-c", program], log=log)
    deadline = time.monotonic() + 30
    while not log.read_text():
        assert not process.ended_within(0.02), log.read_text()
        assert time.monotonic() < deadline
    found = process.find()
    assert found is not None
    return found


def test_another_object_finds_and_ends_the_same_process(process: BackgroundProcess) -> None:
    process.launch(["sleep", "60"], log=process.record.with_name("log"))
    other = BackgroundProcess(process.record, detached=True)
    mine, found = process.find(), other.find()
    assert mine is not None
    assert found is not None
    assert found.pid == mine.pid
    other.kill()
    assert process.find() is None


def test_kill_takes_children_in_sessions_of_their_own_along(process: BackgroundProcess) -> None:
    parent = launch_python(process, PARENT + "import time; time.sleep(60)")
    (child,) = parent.children()
    process.kill()
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_stop_goes_from_signal_to_signal_and_ends_with_sigkill(process: BackgroundProcess) -> None:
    stubborn = launch_python(process, STUBBORN)
    process.stop([(signal.SIGTERM, 0.1), (signal.SIGTERM, 0.1)])
    assert not stubborn.is_running()
    assert not process.record.exists()


def test_a_process_id_used_again_by_another_process_is_not_taken_for_ours(process: BackgroundProcess) -> None:
    process.record.write_text(f'{{"pid": {os.getpid()}, "created": 1.0}}')
    assert process.find() is None
    process.kill()
    assert not process.record.exists()


@pytest.mark.parametrize("fatal", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_an_owned_process_ends_with_its_owner_however_that_ends(tmp_path: Path, fatal: signal.Signals) -> None:
    owner, service = start_owner(tmp_path, "owned")
    owner.send_signal(fatal)
    owner.wait(30)
    psutil.wait_procs([service], timeout=30)
    assert not service.is_running() or service.status() == psutil.STATUS_ZOMBIE


def test_a_detached_process_outlives_its_owner(tmp_path: Path) -> None:
    owner, service = start_owner(tmp_path, "detached")
    owner.kill()
    owner.wait(30)
    left = BackgroundProcess(tmp_path / "process.json", detached=True)
    assert not left.ended_within(0.5)
    left.kill()
    assert not service.is_running() or service.status() == psutil.STATUS_ZOMBIE


def start_owner(folder: Path, how: str) -> tuple[subprocess.Popen[str], psutil.Process]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
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


class Listener(Service):
    """A small real server: accepts connections on its port."""

    title: ClassVar[str] = "Listener"
    address_name: ClassVar[str] = "address"
    stop_signals: ClassVar[Any] = ((signal.SIGTERM, 5.0),)
    program = "import socket, sys, time; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); time.sleep(60)"

    @property
    def address(self) -> str:
        return str(self.settings["port"])

    def answers(self) -> bool:
        return accepts_connections(self.settings["port"])

    def _new_settings(self) -> dict[str, Any]:
        return {"port": free_port()}

    def _prepare(self) -> list[str | Path]:
        return [sys.executable, "-c", self.program, self.address]


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    made = Listener(tmp_path / "listener")
    yield made
    made.kill()


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


def test_another_object_of_the_folder_has_the_same_address(listener: Listener) -> None:
    listener.start()
    other = Listener(listener.folder)
    assert (other.address, other.pid) == (listener.address, listener.pid)


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
