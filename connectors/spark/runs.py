"""Batch writes: one epoch each, in a decision log of their own.

A pipeline and a run key together name the log, so that a rerun finds its own decision, however many other runs of the
pipeline lie between. Without them a run has a random name and a temporary log: all rows or none, but a rerun writes
them again.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.errors import ConfigurationError
from ...core.log import EpochInput, LogStore, open_store
from ...core.names import PIPELINE_LENGTH

if TYPE_CHECKING:
    from .options import FormatOptions

_DIGEST = 16


def batch_pipeline(options: FormatOptions, run: str) -> str:
    """Name under which one run's transactions go."""
    digest = hashlib.sha256(run.encode()).hexdigest()[:_DIGEST]
    return f"{(options.pipeline or 'batch')[: PIPELINE_LENGTH - _DIGEST - 1]}.{digest}"


def batch_epoch(run: str) -> EpochInput:
    """What the run's only epoch is computed from: the caller says by the run key that it is the same."""
    return EpochInput(query=run)


def batch_store(options: FormatOptions, pipeline: str) -> LogStore:
    """The store of one run's decision log.

    Raises:
        ConfigurationError: A run that is to be idempotent has no store to find its decision in.
    """
    if (options.pipeline is None) != (options.run_key is None):
        raise ConfigurationError("options pipeline and runKey go together: give both for an idempotent run, or neither")
    if options.store is not None:
        base = options.store if "://" not in options.store or options.store.startswith("file:") else None
        return open_store(f"{base.rstrip('/')}/{pipeline}" if base else options.store, pipeline=pipeline)
    if options.run_key is not None:
        raise ConfigurationError(
            "an idempotent batch write needs option('store', …): a folder or database where its decision is kept, for "
            "example '/var/lib/onceward' or 'postgresql+psycopg://user@host/db'"
        )
    return open_store(str(Path(tempfile.gettempdir()) / "onceward-batch" / pipeline))
