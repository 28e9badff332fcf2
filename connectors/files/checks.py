"""Checks of a folder for a FileSink or a write-ahead log: whether its file system can do what they need.

They are tried in a new hidden folder, which is deleted again.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from onceward.core.contract.findings import Finding, failed, ok, warning
from onceward.core.errors import SinkError, text_of
from onceward.core.kit.folders import check_rename, file_errors, put_once, sole, sync_folder

if TYPE_CHECKING:
    from collections.abc import Callable

_CHECK: Final = "file system"


def check_folder(folder: Path) -> Finding:
    """Try hard links, renames, exclusive creation, locks and fsync of folders."""
    if not folder.is_dir():
        return failed(_CHECK, f"{folder} is not a folder", "create it, or correct the path")
    try:
        with file_errors(None, folder):
            area = Path(tempfile.mkdtemp(prefix=".onceward-doctor-", dir=folder))
            try:
                return _tried(folder, area)
            finally:
                shutil.rmtree(area, ignore_errors=True)
    except SinkError as error:
        return failed(_CHECK, str(error), "correct it, or use a folder of another file system")


def _tried(folder: Path, area: Path) -> Finding:
    tries: dict[str, Callable[[Path, Path], bool]] = {
        "exclusive creation": _creates_once,
        "hard links": _links_once,
        "renames": _renames,
        "locks (flock)": _locks,
        "fsync of folders": _syncs,
    }
    for ability, works in tries.items():
        try:
            able = works(folder, area)
        except (OSError, SinkError) as error:
            return failed(_CHECK, f"{folder} has no {ability}: {text_of(error)}", "use a folder of another file system")
        if not able:
            return failed(_CHECK, f"{folder} has no {ability} that can be relied on", "use another file system")
    text = f"{folder} has {', '.join(tries)}"
    if (area / "ONCE").exists():
        return warning(
            _CHECK,
            f"{text}, and ignores case",
            "partitions of a FileSink whose values differ only in case are refused: make them alike with select",
        )
    return ok(_CHECK, text)


def _creates_once(_: Path, area: Path) -> bool:
    (area / "once").open("x").close()
    try:
        (area / "once").open("x").close()
    except FileExistsError:
        return True
    return False


def _links_once(_: Path, area: Path) -> bool:
    return put_once(area / "link", b"first") and not put_once(area / "link", b"second")


def _renames(folder: Path, area: Path) -> bool:
    check_rename(area, folder)
    (area / "pending").mkdir()
    (area / "link").rename(area / "pending" / "file")
    (area / "pending").rename(area / "finished")
    return (area / "finished" / "file").read_bytes() == b"first"


def _locks(_: Path, area: Path) -> bool:
    with sole(area / "once") as there:
        return there


def _syncs(_: Path, area: Path) -> bool:
    sync_folder(area)
    return True
