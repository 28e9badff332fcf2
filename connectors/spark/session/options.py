"""Options that every onceward format has. Spark hands options over without regard to case."""

from __future__ import annotations

import json
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
)
from onceward.core.kit.driver_settings import OF_FORMATS
from onceward.core.kit.text_options import arguments, comparable_option
from onceward.core.log.store import MOVED_MARK

from .query import read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
