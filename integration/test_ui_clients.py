"""Clients that are slow, many, or never read: the page's server answers others, and ends when it is told to."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import resource
import signal
import socket
import subprocess
import sys
import termios
import time
from typing import TYPE_CHECKING

import pytest
from tests.ui_kit import Folder

from onceward.cli.ui.server import CONNECTIONS, GRACE, HEADERS, PATIENCE

from .kafka_kit import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROGRAM = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))  # as most machines have it
from onceward.cli.main import main
main()
"""
STEADY = 30
"""Looks at a buffer that does not grow, after which it is full."""
SOON = 5.0
"""Seconds in which an answer has to be there, on a machine that does other work."""


class Page:
    """`onceward ui` as a process, and sockets that are open to it."""

    def __init__(self, process: subprocess.Popen[str], port: int, token: str, opened: contextlib.ExitStack) -> None:
        self.process, self.port, self.token, self._opened = process, port, token, opened

    def connect(self, sent: bytes = b"") -> socket.socket:
        made = self._opened.enter_context(socket.create_connection(("127.0.0.1", self.port), timeout=30))
        made.sendall(sent)
        return made

    def request(self, path: str = "/api/state", *, method: str = "GET", length: int | None = None) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{self.port}", f"x-onceward-token: {self.token}"]
        lines += [f"Content-Length: {length}"] if length is not None else []
        return "\r\n".join([*lines, "", ""]).encode()

    def seconds_to_answer(self) -> float:
        began = time.monotonic()
        asked = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(asked):
            asked.request("GET", "/api/state", headers={"x-onceward-token": self.token})
            answer = asked.getresponse()
            assert answer.status == 200
            assert json.loads(answer.read())
        return time.monotonic() - began


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("ui_jobs", None)
    return Folder(tmp_path)


@contextlib.contextmanager
def opened(folder: Folder, *options: str) -> Iterator[Page]:
    arguments = [sys.executable, "-c", PROGRAM, "ui", "--store", str(folder.checkpoints), "--port", "0", *options]
    with (
        subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process,
        contextlib.ExitStack() as sockets,
    ):
        assert process.stdout is not None
        url, _, token = process.stdout.readline().split()[-1].partition("#token=")
        try:
            yield Page(process, int(url.rstrip("/").rpartition(":")[2]), token, sockets)
        finally:
            process.kill()


@pytest.fixture
def page(folder: Folder) -> Iterator[Page]:
    folder.finish(0)
    with opened(folder) as page:
        yield page


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip("this process may not open 1,100 sockets")
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def closed_after(connection: socket.socket) -> float:
    """Seconds until the server has closed a connection."""
    began = time.monotonic()
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(1 << 16):
            pass
    return time.monotonic() - began


@pytest.mark.usefixtures("many_files")
def test_idle_sockets_without_a_token_keep_nobody_out(page: Page) -> None:
    for number in range(1100):
        sent = (b"", b"GET /", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")[number % 3]
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            page.connect(sent)
    assert page.seconds_to_answer() < SOON
    assert len(list(page_files(page))) < CONNECTIONS + 40, "the server holds a connection for each client"
    page.process.send_signal(signal.SIGINT)
    assert page.process.wait(GRACE + SOON) == 130


def page_files(page: Page) -> Iterator[str]:
    import psutil

    yield from (str(one) for one in psutil.Process(page.process.pid).net_connections("tcp"))


def until_it_is_full(connection: socket.socket) -> None:
    """Wait until no more of the answers fits into the buffers of the system."""
    unread: list[int] = []

    def is_full() -> bool:
        unread.append(int.from_bytes(fcntl.ioctl(connection, termios.FIONREAD, bytes(4)), sys.byteorder))
        return len(unread) > STEADY and unread[-STEADY:] == unread[-1:] * STEADY

    eventually(is_full, "an answer that does not fit")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_pipelined_requests_that_are_never_read_do_not_hold_the_server_up(page: Page, number: signal.Signals) -> None:
    held = page.connect(page.request("/static/app.js") * 1000)
    page.connect(page.request("/static/app.js"))  # a single one fits into the buffer, so nothing is paused
    until_it_is_full(held)
    assert page.seconds_to_answer() < SOON
    page.process.send_signal(number)
    assert page.process.wait(GRACE + SOON) == {signal.SIGINT: 130, signal.SIGTERM: -signal.SIGTERM}[number]


def test_requests_that_do_not_end_are_closed(page: Page) -> None:
    connections = [
        page.connect(),
        page.connect(b"GET /api/state HTTP/1.1\r\nHost: 127.0.0.1\r\nx-a: "),
        page.connect(page.request("/api/commit", method="POST", length=100) + b"{"),
        page.connect(page.request() + b"GET /"),  # the server's own time for idle connections ends at the first byte
    ]
    began = time.monotonic()
    assert closed_after(connections[0]) > PATIENCE / 2
    for connection in connections:
        closed_after(connection)
    assert time.monotonic() - began < PATIENCE + SOON


def test_answers_that_nobody_reads_are_closed(page: Page) -> None:
    page.connect(page.request("/static/app.js") * 1000)
    eventually(lambda: len(list(page_files(page))) > 1, "the connection")
    eventually(lambda: len(list(page_files(page))) == 1, "its end", seconds=2 * PATIENCE + SOON)


def test_headers_that_are_too_long_are_refused(page: Page) -> None:
    connection = page.connect(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nx-long: " + b"x" * 2 * HEADERS)
    assert connection.recv(100).startswith(b"HTTP/1.1 400 ")


def test_a_body_that_is_too_long_is_refused(page: Page) -> None:
    sent = page.request("/api/commit", method="POST", length=2 << 20)
    assert page.connect(sent + b" " * (1200 << 10)).recv(100).startswith(b"HTTP/1.1 413 ")


def test_the_second_signal_ends_the_process_whatever_it_waits_for(folder: Folder) -> None:
    folder.finish(0)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # a database that accepts connections and says nothing
        target = f"postgres=postgresql://127.0.0.1:{silent.getsockname()[1]}/shop?connect_timeout=600"
        with opened(folder, "--at", target) as page:
            page.connect(page.request("/api/look", method="POST", length=0))
            with silent.accept()[0]:
                page.process.send_signal(signal.SIGINT)
                with pytest.raises(subprocess.TimeoutExpired):  # it lets an action end
                    page.process.wait(GRACE + 2)
                page.process.send_signal(signal.SIGINT)
                assert page.process.wait(SOON) == 130
