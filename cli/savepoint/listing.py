"""The savepoints that there are, of Spark queries and of the embedded engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from onceward.core.engine.state.handles import decode_metadata, is_metadata
from onceward.core.engine.state.storage import METADATA, CheckpointStorage, inside
from onceward.core.errors import ConfigurationError, NewerFormatError, StateDamagedError, StateError

from .manifest import BEGUN, MANIFEST, Savepoint

if TYPE_CHECKING:
    from onceward.core.engine.state.handles import Metadata


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A savepoint, as `--json` shows it."""

    place: str
    kind: str
    """"spark", "engine", "incomplete", "damaged", or "newer": of a newer version of the library."""
    pipeline: str
    epoch: int | None = None
    made: str = ""
    size: int | None = None
    """Bytes."""
    retired: bool = False
    restored_to: str = ""
    problem: str = ""


def look(place: str) -> Listed | None:
    """What a folder holds; None if that is no savepoint."""
    storage = CheckpointStorage(place)
    begun = storage.read_if_there(BEGUN).decode()
    try:
        if not begun:
            made = engine_savepoint(storage)
            return _of_engine(storage.root, made) if made is not None else None
        if not storage.read_if_there(MANIFEST):
            return Listed(place=storage.root, kind="incomplete", pipeline=begun)
        saved = Savepoint.load(place)
    except (StateDamagedError, NewerFormatError) as error:
        kind = "damaged" if isinstance(error, StateDamagedError) else "newer"
        return Listed(place=storage.root, kind=kind, pipeline=begun, problem=str(error))
    m = saved.manifest
    return Listed(
        place=storage.root,
        kind="spark",
        pipeline=m.pipeline,
        epoch=m.epoch,
        made=m.made,
        size=m.size,
        retired=m.retired,
        restored_to=saved.restored_to,
    )


def _of_engine(place: str, made: Metadata) -> Listed:
    size = sum(ref.size for ref in made.files)
    return Listed(place=place, kind="engine", pipeline=made.pipeline, epoch=made.checkpoint, size=size)


def engine_savepoint(storage: CheckpointStorage) -> Metadata | None:
    """The metadata of a savepoint of the embedded engine; None if there is none.

    Raises:
        StateDamagedError: They are not what was written.
    """
    data = storage.read_if_there(METADATA)
    if not is_metadata(data):  # a Spark checkpoint has a file of that name too
        return None
    metadata = decode_metadata(data, storage.at(METADATA))
    return metadata if metadata.savepoint else None


def listed(place: str) -> list[Listed]:
    """The savepoint in a folder, or those in the folders right below it.

    Raises:
        ConfigurationError: There is no such folder.
    """
    storage = CheckpointStorage(place)
    names = storage.names()
    if not names:
        raise ConfigurationError(f"{storage.root}: there is no such folder, or it is empty")
    own = look(storage.root)
    found = [own] if own is not None else [look(inside(storage.root, name)) for name in sorted(names)]
    return [one for one in found if one is not None]


def found_at(place: str) -> Listed:
    """What a folder holds.

    Raises:
        ConfigurationError: That is no savepoint.
    """
    found = look(place)
    if found is None:
        raise ConfigurationError(f"{CheckpointStorage(place).root} is not a savepoint")
    return found


def delete(place: str) -> None:
    """Delete a savepoint, or a part of one: first the file without which nobody takes the rest for one.

    Raises:
        ConfigurationError: The folder is not a savepoint.
        StateError: Something could not be deleted.
    """
    pipeline, storage = found_at(place).pipeline, CheckpointStorage(place)
    try:
        if not storage.read_if_there(BEGUN):
            storage.write(BEGUN, [pipeline.encode()])  # so that the rest of it is known for what it is
        storage.delete([MANIFEST, METADATA])
        storage.delete(path for path in storage.walk() if path != BEGUN)
        storage.delete_folder("")
    except OSError as error:
        raise StateError(f"{storage.root} is only partly deleted: {error}. Repeat this") from error
