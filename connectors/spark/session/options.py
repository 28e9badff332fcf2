"""Options that every onceward format has, and where a query's decision log lives.

A streaming query has its log in the checkpoint, or where `store` says; the driver must find it again, whatever machine
it runs on the next time. Spark hands options over without regard to case.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Unpack
from urllib.parse import urlsplit

from onceward.core.checkpoint import CommitPolicy
from onceward.core.checkpoint.subtask import DirectlyWritten
from onceward.core.contract.names import check_pipeline_name
from onceward.core.contract.pipeline_settings import FORMAT
from onceward.core.errors import (
    ConfigurationError,
    EpochConflictError,
    NoDecisionLogError,
    OncewardError,
    StoreError,
)
from onceward.core.kit.driver_settings import OF_FORMATS
from onceward.core.kit.text_options import arguments, comparable_option
from onceward.core.log import LogStore, LogView, open_store, read
from onceward.core.log.objects import CONDITIONAL_PUT
from onceward.core.log.run_writers import register_log
from onceward.core.log.store import EXPLAINING, IN_CHECKPOINT, MOVED_MARK
from onceward.core.log.writer import check_owner
from onceward.core.run.pipeline_run import PipelineRun

from .query import local_path, read_text, reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from onceward.core.contract.pipeline_settings import FormatSettings
    from onceward.sinks import Sink

_OWN: Final = frozenset(map(comparable_option, OF_FORMATS))
COMMON: Final = _OWN | {"queryname", "name", "path"}
"""Options that every format has, in plain spelling; Spark adds a query's name to its options."""


@FORMAT.described
class FormatOptions:
    """The common options of a format.

    Args:
        settings: All settings of FormatSettings.

    Attributes:
        settings: Settings with their defaults.
    """

    def __init__(self, **settings: Unpack[FormatSettings]) -> None:
        self.settings = FORMAT.filled(settings)

    @property
    def checkpoint(self) -> str | None:
        """The query's checkpoint location; None for a batch."""
        checkpoint = self.settings["checkpoint"]
        return None if checkpoint is None else str(checkpoint)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> FormatOptions:
        """Read the common options.

        Raises:
            ConfigurationError: A value is not usable.
        """
        own = {name: text for name, text in options.items() if comparable_option(name) in _OWN}
        values = arguments(cls, own, aliases=OF_FORMATS)
        if "pipeline" in values:
            check_pipeline_name(values["pipeline"])
        if "checkpoint" in values and not urlsplit(values["checkpoint"]).scheme:
            values["checkpoint"] = str(Path(values["checkpoint"]).absolute())  # as Spark takes it
        parsed = cls(**values)
        parsed.policy()
        return parsed

    def policy(self) -> CommitPolicy:
        """Return the coordinator's policy.

        Raises:
            ConfigurationError: A value is not usable.
        """
        settings = self.settings
        return CommitPolicy.of(settings["on_lost"], settings["commit_timeout"], settings["commit_backoff"])

    def checkpoint_root(self) -> str:
        """Return the checkpoint's location, which a streaming format needs as an option.

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
        """Return the query's id from the checkpoint's metadata file."""
        text = read_text(f"{self.checkpoint_root()}/metadata")
        if text is None:
            raise ConfigurationError(f"the checkpoint {self.checkpoint} has no metadata file: is it this query's?")
        return str(json.loads(text)["id"])


def check_complete_mode(sink: Sink) -> None:
    """Refuse the output mode complete if the sink does; one that says nothing can write the whole result again.

    Raises:
        ConfigurationError: The sink refuses it.
    """
    driven = sink.sink if isinstance(sink, DirectlyWritten) else sink
    driven.validate_complete_mode()


def open_pipeline_log(
    store: str | Path | LogStore | None, checkpoint: str, pipeline: str, *, existing: bool = False
) -> LogStore:
    """Open the store of a pipeline's decision log: the given or named one, or the one inside the checkpoint.

    Args:
        store: Store of the log, or its URL, as the user gave it; None for the one inside the checkpoint.
        checkpoint: Root of the checkpoint, as a URL.
        pipeline: Name of the pipeline whose log it is.
        existing: Only look: nothing is made.

    Raises:
        NoDecisionLogError: There is none, and `existing` is set.
        ConfigurationError: It cannot hold a decision log.
    """
    if isinstance(store, str | os.PathLike):
        return open_store(os.fspath(store), pipeline=pipeline, existing=existing)
    if store is not None:
        if not hasattr(store, "put_if_absent"):
            raise ConfigurationError(f"store must be a folder, a URL or a LogStore, not {type(store).__name__}")
        return store
    scheme, folder = urlsplit(checkpoint).scheme, local_path(checkpoint)
    if folder is None and scheme not in CONDITIONAL_PUT:
        raise ConfigurationError(
            f"the checkpoint is on {scheme}://, which cannot hold a decision log. Set store=, for "
            "example store='postgresql+psycopg://user@host/db'"
        )
    place = f"{checkpoint if folder is None else folder}/{IN_CHECKPOINT}"
    return open_store(place, pipeline=pipeline, existing=existing)


def checked_log(
    store: str | Path | LogStore | None, checkpoint: str, pipeline: str, master: str | None
) -> LogView | None:
    """Refuse a decision log that the first epoch would be refused for; it may be long until new input comes.

    Nothing is written. A store that does not answer now is asked again by the first epoch.

    Args:
        store: Store of the log, or its URL, as the user gave it; None for the one inside the checkpoint.
        checkpoint: Root of the checkpoint, as a URL.
        pipeline: Name of the pipeline.
        master: Spark's, if known.

    Returns:
        What the log says; None if there is none yet, or if its store does not answer.

    Raises:
        ConfigurationError: It cannot hold a decision log, or is on a local disk.
        EpochConflictError: The log is another pipeline's, or has moved.
        StoreError: The store refuses this client, or the log is damaged.
    """
    try:
        log = open_pipeline_log(store, checkpoint, pipeline, existing=True)
        check_store_outlives_driver(local_store(log), master)
        view = read(log)
    except NoDecisionLogError:
        return None
    except StoreError as error:
        if not error.retryable:
            raise
        return None
    check_owner(view, pipeline, log)
    return view


@contextmanager
def noting_failed_start(
    store: str | Path | LogStore | None, checkpoint: str | None, pipeline: str | None
) -> Iterator[None]:
    """Note what is raised beside the pipeline's decision log, if there is one: a start that fails has no coordinator.

    Args:
        store: Store of the log, or its URL, as the user gave it; None for the one inside the checkpoint.
        checkpoint: Root of the checkpoint, as a URL; None if it is not known.
        pipeline: Its name; None if it is the query's id, which is not known yet.
    """
    try:
        yield
    except Exception as error:
        log = None if EXPLAINING.get() else existing_log(store, checkpoint, pipeline)
        if log is not None:
            register_log(log)
        PipelineRun(pipeline or "", (), CommitPolicy(), lambda: log, explain=reason).note_failed(None, error)
        raise


def existing_log(store: str | Path | LogStore | None, checkpoint: str | None, pipeline: str | None) -> LogStore | None:
    """Open the store of a decision log for notes; None if there is none, or if it cannot be opened."""
    if not (store or checkpoint):
        return None
    try:
        return open_pipeline_log(store, checkpoint or "", pipeline or "any", existing=True)
    except OncewardError:
        return None


def check_not_moved(checkpoint: str, pipeline: str, read_file: Callable[[str], str | None] | None = None) -> None:
    """Refuse a checkpoint that a restored savepoint has replaced; a log in a store of its own would accept it.

    Args:
        checkpoint: Location of the query's checkpoint.
        pipeline: The pipeline's name.
        read_file: Reads a small text file; by default without a JVM.

    Raises:
        EpochConflictError: The query continues from another checkpoint.
    """
    try:
        place = (read_file or read_text)(f"{checkpoint.rstrip('/')}/{MOVED_MARK}")
    except ConfigurationError:  # it cannot be read from here, so no savepoint was made of it here
        return
    if place:
        raise EpochConflictError(
            f"a savepoint has moved the query from {checkpoint} to {place}: start it with that checkpoint",
            pipeline=pipeline,
        )


def local_store(store: LogStore) -> str:
    """Describe a store that one machine alone sees, for messages; "" for any other."""
    return "" if store.shared else store.describe()


def check_store_outlives_driver(local: str, master: str | None) -> None:
    """Refuse a store on a local disk where the driver may run elsewhere the next time.

    Args:
        local: Description of the store by `local_store`; empty if other machines see it, too.
        master: Spark's, if known.

    Raises:
        ConfigurationError: It is one.
    """
    if not local or master is None or master.startswith("local"):
        return
    raise ConfigurationError(
        f"the decision log in {local} is on a local disk, but the master is {master}: after a failure the "
        "driver may run on another machine and would not find it. Use a database (store='postgresql+psycopg://…'), an "
        "object store, or, if the folder is one that all machines see, store='file:///folder?shared=true'"
    )
