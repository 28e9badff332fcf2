"""Settings of the engine: checkpoints and restarts. docs/engine-settings.md is their page.

They come as arguments, or out of a TOML file and the environment:

    [checkpoint]                    ONCEWARD_CHECKPOINT_INTERVAL=1.0
    interval = 1.0                  ONCEWARD_RESTART_STRATEGY=none

    [restart]
    strategy = "fixed-delay"
    attempts = 3

The environment takes precedence. An unknown name is an error: otherwise a misspelled setting would keep its default.
"""

from __future__ import annotations

import math
import os
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args

import msgspec

from ..errors import ConfigurationError, text_of
from ..kit import typed
from ..kit.text_options import as_value, option_names

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_TABLES: Final = ("checkpoint", "restart")


CheckpointMode = Literal["exactly-once", "at-least-once", "at-most-once"]
"""The guarantee for a record's effect on the state after failures.

exactly-once: barriers are aligned. at-least-once: no channel waits; records may count twice. at-most-once: nothing is
read again after a failure; what was in progress is lost.
"""
Retention = Literal["keep", "delete"]
"""The fate of the newest checkpoints when a run is stopped or fails."""
_Seconds = Annotated[float, msgspec.Meta(gt=0)]
_Count = Annotated[int, msgspec.Meta(ge=0)]


class CheckpointConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that say when checkpoints are made, and which are kept.

    Attributes:
        interval: Seconds from one trigger to the next. Without it, the end of the input is the only checkpoint.
        timeout: Seconds after which a checkpoint that is not complete fails.
        min_pause: Minimum number of seconds between the completion of one checkpoint and the trigger of the next.
        max_concurrent: Maximum number of checkpoints in progress at the same time. A savepoint counts too.
        tolerable_failures: Number of checkpoints in a row that may fail before the run fails. Savepoints do not count.
        retained: Number of completed checkpoints that are kept. More than one makes it possible to go back on purpose.
        mode: "exactly-once"; "at-least-once" (barriers are not aligned); "at-most-once" (nothing is read again after a
            failure).
        on_cancel: Treatment of the state when the run is stopped without a savepoint: "keep" or "delete".
        on_failure: Treatment of the state when the run fails and is not restarted: "keep" or "delete".
        history: Number of checkpoints that `pipeline.checkpoints` remembers.

    Raises:
        ConfigurationError: A value makes no sense.
    """

    interval: _Seconds | None = None
    timeout: _Seconds = 600.0
    min_pause: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    max_concurrent: Annotated[int, msgspec.Meta(ge=1)] = 1
    tolerable_failures: _Count = 0
    retained: Annotated[int, msgspec.Meta(ge=1)] = 1
    mode: CheckpointMode = "exactly-once"
    on_cancel: Retention = "keep"
    on_failure: Retention = "keep"
    history: _Count = 10

    @classmethod
    def load(cls, path: str | Path | None = None) -> CheckpointConfig:
        """Read the settings of a TOML file's table `checkpoint` and of environment variables ONCEWARD_CHECKPOINT_….

        Args:
            path: The file; default: the environment alone.

        Raises:
            ConfigurationError: A name is unknown, or a value makes no sense.
        """
        values = _settings("checkpoint", path)
        _refuse_unknown("checkpoint", values, cls.__struct_fields__)
        return cls(**_checked(values, strict=False))

    def __post_init__(self) -> None:
        _checked(msgspec.structs.asdict(self), strict=True)


_WANTED: Final = {
    "interval": "a number of seconds, more than 0",
    "timeout": "a number of seconds, more than 0",
    "min_pause": "a number of seconds, 0 or more",
    "max_concurrent": "a whole number, 1 or more",
    "tolerable_failures": "a whole number, 0 or more",
    "retained": "a whole number, 1 or more: a restore needs one",
    "mode": f"one of {', '.join(get_args(CheckpointMode))}",
    "on_cancel": f"one of {', '.join(get_args(Retention))}",
    "on_failure": f"one of {', '.join(get_args(Retention))}",
    "history": "a whole number, 0 or more",
}


def _checked(values: dict[str, Any], *, strict: bool) -> dict[str, Any]:
    """Return the values in their types; if not strict, also from text."""
    settings = {}
    for name, value in values.items():
        try:
            settings[name] = typed.convert(value, _TYPES[name], strict=strict)
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"CheckpointConfig({name}={value!r}): give {_WANTED[name]}") from error
    return settings


_TYPES: Final = {field.name: field.type for field in msgspec.structs.fields(CheckpointConfig)}


Restarts = Callable[[float, float], float | None]
"""Memory of one run's failures: a function of the time of a failure (monotonic) and the seconds for which the
attempt had run. It returns the seconds to wait before the next attempt; None if there is none."""


@dataclass(frozen=True)
class RestartStrategy:
    """The rule by which a pipeline starts again after a failure; make one with the methods below.

    Names and defaults are Flink's ("Task Failure Recovery" in its documentation). Pure: times come in as arguments.

    Attributes:
        name: Name of the rule: none, fixed-delay, failure-rate or exponential-delay.
        begin: Function that makes a fresh memory of failures, for one run.
    """

    name: str
    begin: Callable[[], Restarts] = field(repr=False)

    @classmethod
    def load(cls, path: str | Path | None = None) -> RestartStrategy | None:
        """Read the strategy of a TOML file's table `restart` and of environment variables ONCEWARD_RESTART_….

        Args:
            path: The file; default: the environment alone.

        Returns:
            None if neither names one: Pipeline has its default then.

        Raises:
            ConfigurationError: A name is unknown, or a value makes no sense.
        """
        values = _settings("restart", path)
        return cls.of(values.pop("strategy", None), values) if values else None

    @classmethod
    def of(cls, name: str | None, values: Mapping[str, Any]) -> RestartStrategy:
        """Make the strategy of this name, with these settings as numbers or text.

        Raises:
            ConfigurationError: A name is unknown, or a value makes no sense.
        """
        makers: dict[str, Callable[..., RestartStrategy]] = {
            maker.__name__.replace("_", "-"): maker
            for maker in (cls.none, cls.fixed_delay, cls.failure_rate, cls.exponential_delay)
        }
        if name not in makers:
            raise ConfigurationError(f"settings of restart: strategy={name!r}: give one of {', '.join(makers)}")
        known = {p.name: p.annotation for p in option_names(makers[name], omit=("fraction",)).values()}
        _refuse_unknown(f"restart with strategy {name}", values, known)
        return makers[name](**{what: as_value(what, known[what], str(value)) for what, value in values.items()})

    @classmethod
    def none(cls) -> RestartStrategy:
        """Do not restart: the first failure ends the run."""
        return cls("none", lambda: lambda _failed_at, _ran_for: None)

    @classmethod
    def fixed_delay(cls, attempts: int = 3, delay: float = 10.0) -> RestartStrategy:
        """Restart a limited number of times, with the same pause (seconds) before each."""
        _at_least("attempts", attempts, 1)
        _at_least("delay", delay, 0)

        def begin() -> Restarts:
            left = iter(range(attempts))
            return lambda _failed_at, _ran_for: delay if next(left, None) is not None else None

        return cls("fixed-delay", begin)

    @classmethod
    def failure_rate(cls, failures: int = 3, interval: float = 300.0, delay: float = 10.0) -> RestartStrategy:
        """Restart as long as there are at most this many failures in an interval (seconds)."""
        _at_least("failures", failures, 1)
        _at_least("delay", delay, 0)
        if not 0 < interval < math.inf:
            raise ConfigurationError(f"interval of a restart strategy must be more than 0 s, not {interval}")

        def begin() -> Restarts:
            recent: deque[float] = deque()

            def after(failed_at: float, _ran_for: float) -> float | None:
                recent.append(failed_at)
                while recent[0] <= failed_at - interval:
                    recent.popleft()
                return delay if len(recent) <= failures else None

            return after

        return cls("failure-rate", begin)

    @classmethod
    def exponential_delay(
        cls,
        initial: float = 1.0,
        most: float = 60.0,
        factor: float = 1.5,
        jitter: float = 0.1,
        reset_after: float = 3600.0,
        *,
        fraction: Callable[[], float] = random.random,
    ) -> RestartStrategy:
        """Restart forever, after pauses that grow while failures continue.

        Args:
            initial: First pause in seconds.
            most: Longest pause in seconds.
            factor: Growth from one pause to the next.
            jitter: Fraction of the pause by which it is randomly lengthened or shortened.
            reset_after: Seconds that an attempt must run for pauses to start from the first one again.
            fraction: Random number in [0, 1).
        """
        _at_least("initial", initial, 0)
        _at_least("most", most, initial)
        _at_least("factor", factor, 1)
        if not 0 <= jitter <= 1:
            raise ConfigurationError(f"jitter of a restart strategy must be 0 to 1, not {jitter}")

        def begin() -> Restarts:
            upcoming = initial

            def after(_failed_at: float, ran_for: float) -> float | None:
                nonlocal upcoming
                pause = initial if ran_for >= reset_after else upcoming
                upcoming = min(most, pause * factor)
                return pause * (1 + jitter * (2 * fraction() - 1))

            return after

        return cls("exponential-delay", begin)


def _at_least(what: str, value: float, least: float) -> None:
    if not least <= value < math.inf:
        raise ConfigurationError(f"{what} of a restart strategy must be {least} or more, not {value}")


def _settings(table: str, path: str | Path | None) -> dict[str, Any]:
    """Return the settings of a table: those of the file, overridden by those of the environment."""
    values = _file(path).get(table, {}) if path is not None else {}
    prefix = f"ONCEWARD_{table.upper()}_"
    variables = os.environ.items()
    return values | {name[len(prefix) :].lower(): value for name, value in variables if name.startswith(prefix)}


def _refuse_unknown(table: str, names: Collection[str], known: Collection[str]) -> None:
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise ConfigurationError(f"unknown settings in {table}: {', '.join(unknown)}. There are {', '.join(known)}")


def _file(path: str | Path) -> dict[str, dict[str, Any]]:
    try:
        tables: dict[str, dict[str, Any]] = msgspec.toml.decode(Path(path).read_bytes(), type=dict[str, dict[str, Any]])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"settings {path} cannot be read: {text_of(error)}") from error
    _refuse_unknown(str(path), tables, _TABLES)
    return tables
