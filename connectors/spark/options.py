"""Options that every onceward format has. Spark hands them over without regard to case."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from onceward.core.checkpoint import CommitPolicy, OnLost
from onceward.core.checkpoint.policy import COMMIT_BACKOFF, COMMIT_TIMEOUT
from onceward.core.errors import ConfigurationError
from onceward.core.log import LogStore, open_store
from onceward.core.names import check_pipeline_name

from .store import default_store

if TYPE_CHECKING:
    from collections.abc import Mapping

_POLICY = frozenset({"onlost", "committimeout", "commitbackoff"})
COMMON = _POLICY | {"pipeline", "store", "adopt", "rewind", "checkpointlocation", "queryname", "runkey", "name", "path"}
"""Names of the options read here, in lower case; Spark adds a query's name to its options."""


class FormatOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The common options of a format.

    Attributes:
        pipeline: Name of the pipeline; by default the query's id.
        store: URL of the decision log's store; by default inside the checkpoint.
        checkpoint: The query's checkpoint location (streaming).
        run_key: Identity of a batch run: a rerun with the same one writes nothing again.
        on_lost: See exactly_once.
        commit_timeout: In seconds; see exactly_once.
        commit_backoff: In seconds; see exactly_once.
        adopt: See exactly_once.
        rewind: See exactly_once.
    """

    pipeline: str | None = None
    store: str | None = None
    checkpoint: str | None = None
    run_key: str | None = None
    on_lost: str = OnLost.FAIL
    commit_timeout: float = COMMIT_TIMEOUT
    commit_backoff: float = COMMIT_BACKOFF
    adopt: bool = False
    rewind: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> FormatOptions:
        """Read the common options.

        Raises:
            ConfigurationError: A value is not usable.
        """
        low = {key.lower(): value for key, value in options.items()}
        pipeline = low.get("pipeline")
        parsed = cls(
            pipeline=check_pipeline_name(pipeline) if pipeline is not None else None,
            store=low.get("store"),
            checkpoint=_absolute(low["checkpointlocation"]) if "checkpointlocation" in low else None,
            run_key=low.get("runkey"),
            on_lost=low.get("onlost", OnLost.FAIL),
            commit_timeout=seconds("commitTimeout", low.get("committimeout"), COMMIT_TIMEOUT),
            commit_backoff=seconds("commitBackoff", low.get("commitbackoff"), COMMIT_BACKOFF),
            adopt=flag("adopt", low.get("adopt", "false")),
            rewind=low.get("rewind"),
        )
        parsed.policy()
        return parsed

    def policy(self) -> CommitPolicy:
        """The coordinator's policy.

        Raises:
            ConfigurationError: A value is not usable.
        """
        return CommitPolicy.of(self.on_lost, self.commit_timeout, self.commit_backoff)

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


def seconds(name: str, text: str | None, default: float) -> float:
    """A number of seconds.

    Raises:
        ConfigurationError: It is none.
    """
    try:
        return default if text is None else float(text)
    except ValueError:
        raise ConfigurationError(f"option {name} must be a number of seconds, not {text!r}") from None


def flag(name: str, text: str) -> bool:
    """True or false.

    Raises:
        ConfigurationError: It is neither.
    """
    text = text.strip().lower()
    if text not in {"true", "false"}:
        raise ConfigurationError(f"option {name} must be true or false, not {text!r}")
    return text == "true"


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
