"""A TCP proxy between a client and its server, which loses answers."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Proxy:
    """A TCP proxy in front of a server, which can lose answers.

    When `when` is true of a piece of the client's data, the piece is passed on, the server's answer is awaited, and
    both sides are cut (`hang`: the answer is swallowed and the client left waiting).
    """

    def __init__(
        self, port: int, when: Callable[[bytes], bool] = lambda _: False, *, hang: bool = False, times: int = 1
    ) -> None:
        self._port = port
        self._when = when
        self._hang = hang
        self.times = times
        self.lost = 0
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._start(self._accept)

    def _start(self, run: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=run, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                try:
                    server = socket.create_connection(("127.0.0.1", self._port))
                except ConnectionRefusedError:
                    client.close()
                    continue
                self._sockets.append(server)
                losing = threading.Event()
                self._start(self._upward, client, server, losing)
                self._start(self._downward, server, client, losing)

    def _upward(self, client: socket.socket, server: socket.socket, losing: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                if self.lost < self.times and self._when(data):
                    self.lost += 1
                    losing.set()
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    def _downward(self, server: socket.socket, client: socket.socket, losing: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                if not losing.is_set():
                    client.sendall(data)
                elif not self._hang:
                    break
        for link in (client, server):
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for link in self._sockets:
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
        for link in self._sockets:
            link.close()
