"""Options that every onceward format has. Spark hands them over without regard to case.

A batch write is one epoch, in a decision log of its own. A pipeline and a run key together name the log, so that a
rerun finds its own decision, however many other runs of the pipeline lie between. Without them a run has a random name
and a temporary log: all rows or none, but a rerun writes them again. That log is in a folder that only this user can
enter, and is deleted when the run has ended; a run that is killed leaves it in the system's temporary folder
(`onceward-batch-…`), where an operator finds what was decided.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import msgspec

from onceward.core.checkpoint import CommitPolicy, OnLost
from onceward.core.checkpoint.policy import COMMIT_BACKOFF, COMMIT_TIMEOUT
from onceward.core.errors import ConfigurationError
from onceward.core.kit.options import arguments, option_names
from onceward.core.log import DirectoryStore, EpochInput, LogStore, open_store, read
from onceward.core.names import PIPELINE_LENGTH, check_pipeline_name

from .store import default_store

if TYPE_CHECKING:
    from collections.abc import Mapping

_ALIASES: Final = {"checkpointLocation": "checkpoint"}


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
    on_lost: OnLost = OnLost.FAIL
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
        own = {name: text for name, text in options.items() if name.lower() in _OWN}
        given = arguments(cls, own, aliases=_ALIASES)
        if "pipeline" in given:
            check_pipeline_name(given["pipeline"])
        if "checkpoint" in given:
            given["checkpoint"] = _absolute(given["checkpoint"])
        parsed = cls(**given)
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


_OWN: Final = frozenset(option.lower() for option in option_names(FormatOptions, aliases=_ALIASES))
COMMON: Final = _OWN | {"queryname", "name", "path"}
"""Options that every format has, in lower case; Spark adds a query's name to its options."""


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


_DIGEST: Final = 16


def batch_pipeline(options: FormatOptions, run: str) -> str:
    """Name under which one run's transactions go."""
    digest = hashlib.sha256(run.encode()).hexdigest()[:_DIGEST]
    return f"{(options.pipeline or 'batch')[: PIPELINE_LENGTH - _DIGEST - 1]}.{digest}"


def batch_epoch(run: str) -> EpochInput:
    """What the run's only epoch is computed from: the caller says by the run key that it is the same."""
    return EpochInput(query=run)


def batch_store(options: FormatOptions, pipeline: str, temporary: str) -> LogStore:
    """The store of one run's decision log.

    Args:
        options: Of the format.
        pipeline: Name of the run.
        temporary: Folder for a log that only this run uses; "" if it is not needed.

    Raises:
        ConfigurationError: A run that is to be idempotent has no store to find its decision in.
    """
    if (options.pipeline is None) != (options.run_key is None):
        raise ConfigurationError("options pipeline and runKey go together: give both for an idempotent run, or neither")
    if options.store is not None:
        return open_store(_of_run(options.store, pipeline), pipeline=pipeline)
    if options.run_key is not None:
        raise ConfigurationError(
            "an idempotent batch write needs option('store', …): a folder or database where its decision is kept, for "
            "example '/var/lib/onceward' or 'postgresql+psycopg://user@host/db'"
        )
    return DirectoryStore(temporary, shared=True)  # no other driver will look for it


def _of_run(store: str, pipeline: str) -> str:
    """A folder of the run's own; other stores keep pipelines apart by themselves."""
    if store.startswith("file:"):
        folder, mark, query = store.partition("?")
        return f"{folder.rstrip('/')}/{pipeline}{mark}{query}"
    return store if "://" in store else f"{store.rstrip('/')}/{pipeline}"


def temporary_log(options: FormatOptions) -> str:
    """A new folder for the log of a run that nobody can repeat; "" if the run has a store."""
    wanted = options.store is None and options.run_key is None and options.pipeline is None
    return tempfile.mkdtemp(prefix="onceward-batch-") if wanted else ""


def delete_temporary_log(temporary: str) -> None:
    """Delete the folder, unless something in it is decided and not completed."""
    if temporary and read(DirectoryStore(temporary)).undone is None:
        shutil.rmtree(temporary, ignore_errors=True)
