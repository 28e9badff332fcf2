"""Reading a sink's arguments from the options of a Spark format, which come as text and without regard to case."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Option(NamedTuple):
    """An option.

    Attributes:
        name: As documented; case and underscores do not count.
        argument: The sink's argument.
        read: Its value out of the text; may raise ValueError.
        required: Whether it must be given.
    """

    name: str
    argument: str
    read: Callable[[str], Any] = str
    required: bool = False


def read_options(what: str, options: Mapping[str, str], known: tuple[Option, ...]) -> dict[str, Any]:
    """Arguments out of options. No value that cannot be read is repeated: it may be a password at the wrong place.

    Args:
        what: For messages: which sink.
        options: As given.
        known: Those that there are.

    Raises:
        ConfigurationError: An option is unknown, missing or not readable.
    """
    by_name = {_plain(option.name): option for option in known}
    given = {_plain(name): value for name, value in options.items()}
    unknown = sorted(given.keys() - by_name.keys())
    if unknown:
        raise ConfigurationError(f"unknown options {unknown}: {what} takes {', '.join(o.name for o in known)}")
    missing = [option.name for option in known if option.required and _plain(option.name) not in given]
    if missing:
        raise ConfigurationError(f"{what} needs the options {missing}")
    return {by_name[name].argument: _read(by_name[name], value) for name, value in given.items()}


def flag(text: str) -> bool:
    """True or false out of text.

    Raises:
        ValueError: It is neither.
    """
    return {"true": True, "false": False}[text.strip().lower()]


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


def _read(option: Option, text: str) -> Any:
    try:
        return option.read(text)
    except (ValueError, KeyError):
        kind = {int: "a whole number", float: "a number", flag: "true or false"}.get(option.read, "readable")
        raise ConfigurationError(f"option {option.name} is not {kind}") from None
