"""Batch writes: one epoch each, in a decision log of their own.

A pipeline and a run key together name the log, so that a rerun finds its own decision, however many other runs of the
pipeline lie between. Without them a run has a random name and a temporary log: all rows or none, but a rerun writes
them again. That log is in a folder that only this user can enter, and is deleted when the run has ended; a run that is
killed leaves it in the system's temporary folder (`onceward-batch-…`), where an operator finds what was decided.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from typing import TYPE_CHECKING, Final

from onceward.core.errors import ConfigurationError
from onceward.core.log import EpochInput, LogStore, open_store, read
from onceward.core.log.directory import DirectoryStore
from onceward.core.names import PIPELINE_LENGTH

if TYPE_CHECKING:
    from .options import FormatOptions

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
