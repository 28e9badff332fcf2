"""A real PostgreSQL server on this machine, without Docker and without root."""

from __future__ import annotations

import os
import secrets
from functools import cached_property
from signal import SIGINT, SIGQUIT
from typing import TYPE_CHECKING, Any, ClassVar

import psutil

from .machine import LOOPBACK, DevServiceError, accepts_connections, free_port
from .postgres_programs import data_folder, delete_outside_data, private_copy, programs_for, unprivileged_user
from .process import run_program
from .service import Service

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from signal import Signals

    from .process import RunAs

SUPERUSER = "dev"

FOR_TWO_PHASE_COMMIT: Mapping[str, str] = {
    "max_prepared_transactions": "100",
    "max_connections": "200",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # Over TCP only: a socket's path may be too long, and a folder for it not writable.
    "unix_socket_directories": "",
}


def _drop_stale_lock(lock: Path) -> None:
    """Removes a killed server's lock file where the server itself would take it for valid.

    It asks only whether the process id is in use: by a killed server that nobody has waited for yet, it is.
    """
    try:
        process = psutil.Process(int(lock.read_text().split("\n", 1)[0]))
        if process.status() != psutil.STATUS_ZOMBIE and process.name() == "postgres":
            return
    except FileNotFoundError:
        return
    except psutil.NoSuchProcess:
        pass
    lock.unlink()


class PostgresServer(Service):
    """A PostgreSQL server in the background, with prepared transactions switched on.

    Args:
        folder: Folder of the server's state.
        config: Server settings beside or instead of those for two-phase commit.
        detached: True: it outlives this program.
    """

    title: ClassVar[str] = "PostgreSQL"
    address_name: ClassVar[str] = "dsn"
    # Fast shutdown, then immediate shutdown.
    stop_signals: ClassVar[Sequence[tuple[Signals, float]]] = ((SIGINT, 15.0), (SIGQUIT, 5.0))

    def __init__(self, folder: Path, *, config: Mapping[str, str] | None = None, detached: bool = False) -> None:
        super().__init__(folder, detached=detached)
        self.config = dict(config or {})

    @property
    def port(self) -> int:
        """TCP port on the loopback address."""
        port: int = self.settings["port"]
        return port

    @property
    def dsn(self) -> str:
        """Connection URI of the superuser, password included, for database `postgres`."""
        return self.dsn_of("postgres")

    @property
    def address(self) -> str:
        """The connection URI."""
        return self.dsn

    def dsn_of(self, database: str) -> str:
        """Connection URI of the superuser, password included, for this database."""
        return f"postgresql://{SUPERUSER}:{self.settings['password']}@{LOOPBACK}:{self.port}/{database}"

    def answers(self) -> bool:
        """Whether the server accepts connections."""
        if not accepts_connections(self.port):
            return False
        probe: list[str | Path] = [self._programs / "pg_isready", "-q", "-t", "1", "-h", LOOPBACK, "-p", str(self.port)]
        return run_program(probe, user=self._run_as(), env=self._environment()).returncode == 0

    def delete(self) -> None:
        """Kills the server and deletes its data, its settings and its log."""
        super().delete()
        delete_outside_data(self.folder)

    @cached_property
    def _programs(self) -> Path:
        return programs_for(self._run_as())

    def _run_as(self) -> RunAs | None:
        return unprivileged_user()

    def _environment(self) -> dict[str, str]:
        # The PG… variables of the person's own clients would also steer this server's programs.
        return {key: value for key, value in os.environ.items() if not key.startswith(("PG", "LC_", "LANG"))}

    def _new_settings(self) -> dict[str, Any]:
        # Left over if somebody deleted this folder by hand: a server with another password.
        delete_outside_data(self.folder)
        return {"port": free_port(), "password": secrets.token_hex(12)}

    def _prepare(self) -> list[str | Path]:
        port = self.port  # the settings first: making them deletes what an older server left outside
        data = data_folder(self.folder, self._run_as())
        if not self._initialised(data):
            self._initialise(data)
        _drop_stale_lock(data / "postmaster.pid")
        config = {**FOR_TWO_PHASE_COMMIT, "listen_addresses": LOOPBACK, "port": str(port), **self.config}
        settings = [part for key, value in config.items() for part in ("-c", f"{key}={value}")]
        return [self._programs / "postgres", "-D", data, *settings]

    @staticmethod
    def _initialised(data: Path) -> bool:
        # The last file that initdb writes before it is done.
        return (data / "global" / "pg_control").exists() and (data / "onceward-initialised").exists()

    def _initialise(self, data: Path) -> None:
        password = private_copy(self.settings["password"], self._run_as())
        options = ["--auth=scram-sha-256", f"--pwfile={password}", "--encoding=UTF8", "--locale=C", "--no-sync"]
        try:
            command: list[str | Path] = [self._programs / "initdb", "-D", data, "-U", SUPERUSER, *options]
            done = run_program(command, user=self._run_as(), env=self._environment())
        finally:
            password.unlink()
        if done.returncode != 0:
            raise DevServiceError(f"PostgreSQL's initdb failed: {done.stdout}")
        (data / "onceward-initialised").touch()
