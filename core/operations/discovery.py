"""Find decision logs below a folder, and read them without getting in the way of the pipelines that write them."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from ..errors import ConfigurationError, NoDecisionLogError, text_of
from ..log import DirectoryStore
from ..log.entries import position_of
from ..log.store import IN_CHECKPOINT, local_folder
from .log_locations import open_log

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from .log_locations import Log

_FOLDERS: Final = 10_000
"""Maximum number of folders that are searched for decision logs."""
_OF_SPARK: Final = frozenset({"offsets", "commits", "sources", "state"})
"""Spark's own folders in a checkpoint, which may be many."""
_OF_FILE_SYSTEMS: Final = frozenset({"lost+found"})
"""Folders of file systems, which only root can read."""
_NAMES: Final = 50
"""Maximum number of names in a folder that are read to recognize a decision log."""


@dataclass(frozen=True)
class FoundLogs:
    """The decision logs below a folder.

    Attributes:
        logs: Decision logs that can be read.
        errors: Folder of each of the others, and of each that cannot be searched, with what is wrong.
    """

    logs: tuple[Log, ...]
    errors: Mapping[str, str]


def find_logs(root: str) -> FoundLogs:
    """Find the decision logs in a local folder, and down to three levels below it, where checkpoints have them.

    At most 10,000 folders are looked into; if there are more, that is one of the errors. Nothing is made or changed.

    Args:
        root: A checkpoint folder, or a folder that contains several.

    Raises:
        NoDecisionLogError: There is no such folder.
        ConfigurationError: It is not a local folder.
    """
    local = local_folder(root)
    if local is None:
        raise ConfigurationError("decision logs are searched for below a local folder: open others by their URL")
    if not local[0].is_dir():
        raise NoDecisionLogError(f"no such folder: {local[0]}")
    logs: list[Log] = []
    errors: dict[str, str] = {}
    try:
        for folder in log_folders(local[0], errors):
            try:
                logs.append(open_log(str(folder)))
            except Exception as error:  # noqa: BLE001 - whatever is in it, the folders after it may be sound
                errors[str(folder)] = text_of(error)
    except ConfigurationError as error:
        errors[str(local[0])] = str(error)
    return FoundLogs(tuple(logs), errors)


class Unsynced(DirectoryStore):
    """A decision log's folder for reading without syncing it, where nobody acts on what is read."""

    most_bytes = 1 << 26  # of each pipeline in turn, by one process

    def __init__(self, path: Path) -> None:
        self.path, self.shared = path, False

    def get(self, key: str) -> bytes | None:
        with self._doing(f"read entry {key} in"), suppress(FileNotFoundError):
            return self.contents(key)
        return None

    def list_keys(self) -> list[str]:
        with self._doing("list"):
            return sorted(entry.name for entry in self.path.iterdir() if not entry.name.startswith("."))


def log_folders(root: Path, errors: dict[str, str] | None = None) -> Iterator[Path]:
    """Find folders with a decision log: the root itself, and down to three levels below it.

    Of a checkpoint that has its log inside, and of Spark's own folders, nothing else is searched.

    Args:
        root: Folder to begin with.
        errors: Mapping that gets each folder that cannot be searched, and so may have a log, with what is wrong.

    Raises:
        ConfigurationError: There are too many folders; raised after those that were found.
    """
    level, left = [root], _FOLDERS
    for _ in range(4):
        below: list[Path] = []
        for folder in level[:left]:
            try:
                is_log, inside = _inside(folder)
            except (FileNotFoundError, NotADirectoryError):  # gone meanwhile
                continue
            except OSError as error:
                if errors is not None:
                    errors[str(folder)] = f"{folder} cannot be searched for decision logs: {text_of(error)}"
                continue
            if is_log:
                yield folder
            below += [folder / name for name in inside]
        left -= len(level)
        level = below
        if left < len(level):
            raise ConfigurationError(
                f"{root} has more than {_FOLDERS} folders, so not all were searched for decision logs: give folders "
                "further down, or the checkpoints themselves"
            )


def _inside(folder: Path) -> tuple[bool, list[str]]:
    """Return whether a folder is a decision log, and which folders in it may have one."""
    with os.scandir(folder) as entries:
        some = list(islice(entries, _NAMES))
        if any(position_of(entry.name) is not None for entry in some):
            return True, []
        some += islice(entries, _FOLDERS)
    names = {entry.name for entry in some if entry.is_dir(follow_symlinks=False) and _is_text(entry.name)}
    if IN_CHECKPOINT in names:
        return False, [IN_CHECKPOINT]
    return False, sorted(names - (_OF_SPARK if _OF_SPARK & names else set()) - _OF_FILE_SYSTEMS)


def _is_text(name: str) -> bool:
    """Return whether a name can be shown; JSON has no form for one that is not UTF-8."""
    return not any("\ud800" <= character <= "\udfff" for character in name)
