"""A real MariaDB server of the tests' own, from an installed package, which can be killed and started again."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import pymysql

from onceward.testing.machine import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PROGRAM: Final = shutil.which("mariadbd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
"""The server's program; None if it is not installed (Debian's package mariadb-server-core)."""
_START_SECONDS: Final = 60.0


class MariaDb:
    """A server in a folder, always at the same port.

    Args:
        folder: The folder.
        options: Options of the server beside those of every test.
    """

    def __init__(self, folder: Path, options: Sequence[str] = ()) -> None:
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"mariadb+pymysql://root@127.0.0.1:{self.port}/matrix"

    def create(self) -> None:
        """Make the server's files, and start it with an empty database."""
        if os.geteuid() == 0:  # a server does not run as root
            shutil.chown(self._folder, "nobody")
        command = ["mariadb-install-db", "--no-defaults", f"--datadir={self._folder}/data", "--skip-test-db"]
        command += ["--auth-root-authentication-method=normal", *self._user]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=self._folder, env=self._environment)
        self.start_again()
        with self._connected() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE matrix")

    @property
    def _user(self) -> list[str]:
        return [f"--user={pwd.getpwnam('nobody').pw_name}"] if os.geteuid() == 0 else []

    @property
    def _environment(self) -> dict[str, str]:
        """A server that starts deletes what others have in the folder for temporary files: one for each."""
        return {**os.environ, "TMPDIR": str(self._folder)}

    def _connected(self) -> pymysql.connections.Connection:
        return pymysql.connect(host="127.0.0.1", port=self.port, user="root", connect_timeout=5)

    def start_again(self) -> None:
        assert PROGRAM is not None
        place = [f"--datadir={self._folder}/data", f"--socket={self._folder}/socket", f"--port={self.port}"]
        durable = ["--innodb-flush-log-at-trx-commit=1", "--sync-binlog=1", "--skip-name-resolve"]
        with (self._folder / "log").open("ab") as log:
            command = [
                PROGRAM,
                "--no-defaults",
                *place,
                "--bind-address=127.0.0.1",
                *durable,
                *self._options,
                *self._user,
            ]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder, env=self._environment)
        until = time.monotonic() + _START_SECONDS
        while True:
            try:
                self._connected().close()
            except pymysql.Error:
                if self._process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"MariaDB did not start: {(self._folder / 'log').read_text()[-3000:]}") from None
                time.sleep(0.05)
            else:
                return

    def check_alive(self) -> None:
        """Raise an error with the end of the server's log if it has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            log = (self._folder / "log").read_text(errors="replace")[-6000:]
            raise RuntimeError(f"MariaDB ended by itself ({self._process.returncode}): {log}")

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def version() -> str:
    """Return the version of the installed server."""
    assert PROGRAM is not None
    return subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout.split()[2]


@contextmanager
def running_mariadb(*options: str) -> Iterator[MariaDb]:
    with TemporaryDirectory(prefix="onceward-test-") as folder:
        server = MariaDb(Path(folder), options)
        try:
            server.create()
            yield server
            server.check_alive()
        finally:
            server.kill()
