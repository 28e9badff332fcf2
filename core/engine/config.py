"""Settings of checkpoints."""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

import msgspec

from ..errors import ConfigurationError
from .settings import refuse_unknown, settings

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger("onceward.engine")

T = TypeVar("T", bound=StrEnum)


class Mode(StrEnum):
    """What a record's effect on the state is after failures."""

    EXACTLY_ONCE = "exactly-once"
    """Barriers are aligned."""
    AT_LEAST_ONCE = "at-least-once"
    """No channel waits; records may count twice."""
    AT_MOST_ONCE = "at-most-once"
    """Nothing is read again after a failure; what was in progress is lost."""


class Retention(StrEnum):
    """What becomes of the newest checkpoints when a run ends otherwise than by itself."""

    KEEP = "keep"
    DELETE = "delete"


@dataclass(frozen=True)
class CheckpointConfig:
    """When checkpoints are made, and what of them is kept.

    Attributes:
        interval: Seconds from one trigger to the next; None: no periodic checkpoints.
        timeout: Seconds after which a checkpoint that is not complete is given up.
        min_pause: Seconds between the completion of one and the trigger of the next, at least.
        max_concurrent: How many may be in progress at once.
        tolerable_failures: How many in a row may fail before the run does.
        retained: How many completed ones are kept.
        mode: See Mode.
        on_cancel: What to do with the retained ones when the run is stopped without a savepoint.
        on_failure: What to do with them when the run fails for good.
        history: How many are remembered for people.
    """

    interval: float | None = None
    timeout: float = 600.0
    min_pause: float = 0.0
    max_concurrent: int = 1
    tolerable_failures: int = 0
    retained: int = 1
    mode: Mode = Mode.EXACTLY_ONCE
    on_cancel: Retention = Retention.KEEP
    on_failure: Retention = Retention.KEEP
    history: int = 10

    @classmethod
    def load(cls, path: str | Path | None = None) -> CheckpointConfig:
        """The settings of a TOML file's table `checkpoint` and of environment variables ONCEWARD_CHECKPOINT_….

        Args:
            path: The file; default: the environment alone.

        Raises:
            ConfigurationError: A name is unknown, or a value makes no sense.
        """
        values = settings("checkpoint", path)
        refuse_unknown("checkpoint", values, [field.name for field in fields(cls)])
        try:
            return msgspec.convert(values, cls, strict=False).checked()
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"settings of checkpoint: {error}") from error

    def checked(self) -> CheckpointConfig:
        """Itself, with values that make sense.

        Raises:
            ConfigurationError: A value does not.
        """
        for name in ("interval", "timeout", "min_pause"):
            value = getattr(self, name)
            if not isinstance(value, int | float) and not (value is None and name == "interval"):
                raise ConfigurationError(f"CheckpointConfig({name}={value!r}): give a number of seconds")
        for name in ("max_concurrent", "tolerable_failures", "retained", "history"):
            if not isinstance(getattr(self, name), int):
                raise ConfigurationError(f"CheckpointConfig({name}={getattr(self, name)!r}): give a whole number")
        for name, least in (("min_pause", 0), ("max_concurrent", 1), ("tolerable_failures", 0), ("history", 0)):
            if getattr(self, name) < least:
                raise ConfigurationError(f"CheckpointConfig({name}={getattr(self, name)}): give {least} or more")
        for name in ("interval", "timeout"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigurationError(f"CheckpointConfig({name}={value}): give more than 0 seconds")
        config = replace(
            self,
            mode=_one_of(Mode, "mode", self.mode),
            on_cancel=_one_of(Retention, "on_cancel", self.on_cancel),
            on_failure=_one_of(Retention, "on_failure", self.on_failure),
        )
        if config.retained <= 0:
            _log.warning("CheckpointConfig(retained=%s): a restore needs one, so 1 is kept", config.retained)
            config = replace(config, retained=1)
        return config


def _one_of(kind: type[T], name: str, value: str) -> T:
    try:
        return kind(value)
    except ValueError:
        choices = ", ".join(choice.value for choice in kind)
        raise ConfigurationError(f"CheckpointConfig({name}={value!r}): give one of {choices}") from None
