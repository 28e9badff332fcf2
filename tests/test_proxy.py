"""The proxy of the kit: it forwards; cut, it delivers nothing or loses answers; it resets, refuses, and mends."""

from __future__ import annotations

import gc
import socket
import socketserver
import threading
import time
from queue import Queue
from typing import TYPE_CHECKING

import pytest

from onceward.testing.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

SOON = 10.0


class Echo(socketserver.ThreadingTCPServer):
    """Answers each line with itself, and keeps what has arrived."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        self.arrived: Queue[bytes] = Queue()
        super().__init__(("127.0.0.1", 0), Line)


class Line(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, Echo)
        try:
            for line in self.rfile:
                self.server.arrived.put(line)
                self.wfile.write(line)
        except ConnectionResetError:
            pass


@pytest.fixture
def echo() -> Iterator[Echo]:
    with Echo() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    proxy = Proxy("127.0.0.1", echo.server_address[1])
    yield proxy
    proxy.close()


def connected(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=SOON)


def answer(client: socket.socket) -> bytes:
    return client.makefile("rb").readline()


def is_silent(client: socket.socket) -> bool:
    client.settimeout(0.2)
    try:
        client.recv(1)
    except TimeoutError:
        return True
    finally:
        client.settimeout(SOON)
    return False


def test_the_proxy_forwards_both_ways(proxy: Proxy, echo: Echo) -> None:
    with connected(proxy) as client:
        client.sendall(b"one\n")
        assert answer(client) == b"one\n"
    assert echo.arrived.get(timeout=SOON) == b"one\n"


def test_what_is_sent_while_it_is_cut_arrives_after_it_is_mended(proxy: Proxy, echo: Echo) -> None:
    with connected(proxy) as client:
        proxy.cut()
        client.sendall(b"late\n")
        assert is_silent(client)
        assert echo.arrived.empty()
        proxy.mend()
        assert answer(client) == b"late\n"


def test_requests_arrive_and_their_answers_are_lost(proxy: Proxy, echo: Echo) -> None:
    with connected(proxy) as client:
        proxy.cut(requests=True)
        client.sendall(b"done\n")
        assert echo.arrived.get(timeout=SOON) == b"done\n"
        assert is_silent(client)
        proxy.refuse()
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_an_answer_is_cut_in_the_middle_and_later_ones_are_whole(proxy: Proxy, echo: Echo) -> None:
    proxy.truncate()
    with connected(proxy) as client:
        client.sendall(b"12345\n")
        assert client.recv(100) == b"123"
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    assert echo.arrived.get(timeout=SOON) == b"12345\n"
    proxy.mend()
    with connected(proxy) as client:
        client.sendall(b"again\n")
        assert answer(client) == b"again\n"


def test_a_dropped_answer_resets_the_connection_after_the_request_has_arrived(proxy: Proxy, echo: Echo) -> None:
    proxy.drop_answers()
    with connected(proxy) as client:
        client.sendall(b"done\n")
        assert echo.arrived.get(timeout=SOON) == b"done\n"
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_answers_come_late(proxy: Proxy) -> None:
    proxy.delay(0.3)
    began = time.monotonic()
    with connected(proxy) as client:
        client.sendall(b"late\n")
        assert answer(client) == b"late\n"
    assert time.monotonic() - began >= 0.3


def test_connections_that_are_forgotten_stay_silent_and_new_ones_work(proxy: Proxy) -> None:
    with connected(proxy) as old:
        old.sendall(b"seen\n")
        assert answer(old) == b"seen\n"
        proxy.forget()
        old.sendall(b"lost\n")
        with connected(proxy) as new:
            new.sendall(b"found\n")
            assert answer(new) == b"found\n"
        proxy.mend()
        assert is_silent(old)


def test_new_connections_are_refused_until_it_is_mended(proxy: Proxy) -> None:
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        connected(proxy)
    proxy.mend()
    with connected(proxy) as client:
        client.sendall(b"again\n")
        assert answer(client) == b"again\n"


def test_a_service_that_is_down_resets_its_clients(proxy: Proxy, echo: Echo) -> None:
    echo.socket.close()
    with connected(proxy) as client, pytest.raises(ConnectionResetError):
        client.recv(1)


def test_a_closed_proxy_leaves_no_socket_open() -> None:
    """Whatever is not closed is a ResourceWarning, and with that an error."""
    with Echo() as echo:
        threading.Thread(target=echo.serve_forever, daemon=True).start()
        for _ in range(30):
            open_and_close(echo)
        echo.shutdown()
    gc.collect()


def open_and_close(echo: Echo) -> None:
    proxy = Proxy("127.0.0.1", echo.server_address[1])
    clients = [socket.create_connection(("127.0.0.1", proxy.port)) for _ in range(5)]
    proxy.close()
    for client in clients:
        client.close()
