"""Options that every onceward format has. Spark hands them over without regard to case."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from onceward.core.checkpoint import CommitPolicy, OnLost
from onceward.core.errors import ConfigurationError
from onceward.core.kit.options import arguments
from onceward.core.log import LogStore, open_store
from onceward.core.names import check_pipeline_name

from .store import default_store

if TYPE_CHECKING:
    from collections.abc import Mapping

COMMON = frozenset(
    {"pipeline", "store", "onlost", "adopt", "rewind", "checkpointlocation", "queryname", "runkey", "name", "path"}
)
"""Names of the options read here, in lower case; Spark adds a query's name to its options."""


class FormatOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The common options of a format.

    Attributes:
        pipeline: Name of the pipeline; by default the query's id.
        store: URL of the decision log's store; by default inside the checkpoint.
        checkpoint: The query's checkpoint location (streaming).
        run_key: Identity of a batch run: a rerun with the same one writes nothing again.
        on_lost: See CommitPolicy.
        adopt: See exactly_once.
        rewind: See exactly_once.
    """

    pipeline: str | None = None
    store: str | None = None
    checkpoint: str | None = None
    run_key: str | None = None
    on_lost: OnLost = OnLost.FAIL
    adopt: bool = False
    rewind: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> FormatOptions:
        """Read the common options.

        Raises:
            ConfigurationError: A value is not usable.
        """
        own = {name: text for name, text in options.items() if name.lower() in COMMON - {"queryname", "name", "path"}}
        given = arguments(cls, own, aliases={"checkpointLocation": "checkpoint"})
        if "pipeline" in given:
            check_pipeline_name(given["pipeline"])
        if "checkpoint" in given:
            given["checkpoint"] = _absolute(given["checkpoint"])
        return cls(**given)

    def policy(self) -> CommitPolicy:
        """The coordinator's policy."""
        return CommitPolicy(on_lost=self.on_lost)

    def checkpoint_root(self) -> str:
        """The checkpoint, which a streaming format must be told.

        Raises:
            ConfigurationError: It was not.
        """
        if self.checkpoint is None:
            raise ConfigurationError(
                "the format needs option('checkpointLocation', …) on the query itself: from Spark's configuration "
                "(spark.sql.streaming.checkpointLocation) it does not reach a Python data source. exactly_once(…) "
                "works with the configuration too"
            )
        return self.checkpoint.rstrip("/")

    def query(self) -> str:
        """The query's id, out of the checkpoint's metadata file."""
        text = read_text(f"{self.checkpoint_root()}/metadata")
        if text is None:
            raise ConfigurationError(f"the checkpoint {self.checkpoint} has no metadata file: is it this query's?")
        return str(json.loads(text)["id"])

    def open_store(self, pipeline: str) -> LogStore:
        """The decision log's store of a streaming query."""
        if self.store is not None:
            return open_store(self.store, pipeline=pipeline)
        return default_store(self.checkpoint_root(), pipeline)


def check_on_lost(text: str) -> OnLost:
    """What to do with lost data.

    Raises:
        ConfigurationError: It is none of the choices.
    """
    try:
        return OnLost(text.lower())
    except ValueError:
        raise ConfigurationError(f"on_lost is {text!r}; give one of {[choice.value for choice in OnLost]}") from None


def _absolute(checkpoint: str) -> str:
    """A path without scheme as Spark takes it: below the driver's working directory."""
    return checkpoint if urlsplit(checkpoint).scheme else str(Path(checkpoint).absolute())


def newest_batch(checkpoint: str) -> int:
    """The newest batch whose offsets a checkpoint holds.

    Raises:
        ConfigurationError: There is none, or nothing here can read that file system.
    """
    folder, local = f"{checkpoint}/offsets", _local_path(f"{checkpoint}/offsets")
    try:
        names = [path.name for path in Path(local).iterdir()] if local is not None else _remote_names(folder)
    except (ImportError, ValueError, OSError) as error:
        raise ConfigurationError(f"cannot list {folder} from Python: {error}") from error
    batches = [int(name) for name in names if name.isdigit()]
    if not batches:
        raise ConfigurationError(f"the checkpoint {checkpoint} holds no offsets: is it this query's checkpoint?")
    return max(batches)


def _remote_names(folder: str) -> list[str]:
    import fsspec  # noqa: PLC0415 - an extra

    filesystem, path = fsspec.core.url_to_fs(folder)
    return [str(name).rpartition("/")[2] for name in filesystem.ls(path, detail=False)]


def _local_path(url: str) -> str | None:
    """Hadoop writes file:/x, file:///x or /x for one place."""
    if url.startswith("file:"):
        return "/" + url.removeprefix("file:").lstrip("/")
    return None if urlsplit(url).scheme else url


def read_text(url: str) -> str | None:
    """Read a small text file, local or through fsspec; None if it is not there.

    Raises:
        ConfigurationError: Nothing here can read that file system.
    """
    path = _local_path(url)
    if path is not None:
        try:
            return Path(path).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
    try:
        import fsspec  # noqa: PLC0415 - an extra

        with fsspec.open(url, "rt", encoding="utf-8") as remote:
            return str(remote.read())
    except FileNotFoundError:
        return None
    except (ImportError, ValueError) as error:
        raise ConfigurationError(
            f"cannot read {url} from Python ({error}): install fsspec's package for it, or use exactly_once(…)"
        ) from error
