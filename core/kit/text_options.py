"""Arguments out of options that come as text and without regard to case, as those of a Spark format do."""

from __future__ import annotations

import inspect
import operator
import os
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from enum import Enum
from functools import reduce
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, Literal, Union, get_args, get_origin

import msgspec

from ..errors import ConfigurationError
from . import typed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Names = list[str] | tuple[str, ...]
"""Several names or expressions. Type checkers would take one text for a Sequence[str], too."""
_ANNOTATIONS: Final = {"Collection": list, "Mapping": dict, "Names": Names, "Path": str, "Sequence": list}
"""Types for names in signatures that their modules import for type checkers alone."""
MOST_SECONDS: Final = 86400
"""Longest timeout: sockets refuse some larger values, but only when they are used."""
_KINDS: Final = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_PLAIN: Final = {*_KINDS, type(None)}


def arguments(
    make: Callable[..., Any],
    options: Mapping[str, str],
    *,
    aliases: Mapping[str, str] | None = None,
    defaults: Mapping[str, Any] | None = None,
    omit: Collection[str] = (),
    also: Iterable[str] = (),
) -> dict[str, Any]:
    """Read arguments from options, by a signature: an option is named as its argument, in any case.

    Underscores do not count either, so `rowsPerSend` gives `rows_per_send`. Lists are separated by commas. Arguments
    that are mappings, and `select` and `where`, cannot be given. No value that cannot be read is repeated: it may be a
    password at the wrong place.

    Args:
        make: The class or function that takes the arguments.
        options: Values of the options by their names, as the user gave them.
        aliases: Options that are not called as their arguments: `{"dbtable": "table"}`.
        defaults: Arguments where no option gives them.
        omit: Further arguments that no option gives.
        also: Options that the caller reads itself, to be named where one is unknown.

    Raises:
        ConfigurationError: An option is unknown, missing, given in two spellings, or not readable.
    """
    known = option_names(make, aliases=aliases, omit=omit)
    documented = {comparable_option(option): option for option in known}
    unknown = sorted(name for name in options if comparable_option(name) not in documented)
    if unknown:
        every = dict.fromkeys([*known, *also])
        raise ConfigurationError(
            f"unknown options {unknown}: {_meant(unknown, every)}{make.__name__} takes {', '.join(every)}"
        )
    spellings = distinct(options, lambda name: known[documented[comparable_option(name)]].name)
    needed = {p.name: option for option, p in reversed(known.items()) if p.default is p.empty}
    missing = sorted(needed[argument] for argument in needed.keys() - spellings.keys() - (defaults or {}).keys())
    if missing:
        raise ConfigurationError(f"{make.__name__} needs the options {missing}")
    values = dict(defaults or {})
    for argument, name in spellings.items():
        option = documented[comparable_option(name)]
        values[argument] = as_value(option, known[option].annotation, options[name])
    return values


def _meant(unknown: Iterable[str], known: Iterable[str]) -> str:
    """Return a question that names the known options that are spelled like unknown ones; "" if there are none."""
    spellings = {comparable_option(option): option for option in known}
    close = [get_close_matches(comparable_option(option), spellings, n=1) for option in unknown]
    suggestions = dict.fromkeys(spellings[name] for names in close for name in names)
    return f"did you mean {', '.join(suggestions)}? " if suggestions else ""


def comparable_option(option: str) -> str:
    """Return the name by which options are compared: in lower case, without underscores."""
    return option.lower().replace("_", "")


def distinct(options: Iterable[str], meaning: Callable[[str], str] = comparable_option) -> dict[str, str]:
    """Return options by their meaning; raise ConfigurationError if two of them mean the same."""
    spellings: dict[str, str] = {}
    for option in options:
        other = spellings.setdefault(meaning(option), option)
        if other != option:
            raise ConfigurationError(f"options {other} and {option} are two spellings of one: give it once")
    return spellings


def option_names(
    make: Callable[..., Any], *, aliases: Mapping[str, str] | None = None, omit: Collection[str] = ()
) -> dict[str, inspect.Parameter]:
    """Return the options that `arguments` reads, as they are documented, and the parameter that each gives."""
    parameters = _parameters(make).values()
    taken = {
        p.name: p for p in parameters if p.name not in {"select", "where", *omit} and not _is_mapping(p.annotation)
    }
    other = {option: taken[name] for option, name in (aliases or {}).items()}
    return other | {as_option(name): p for name, p in taken.items() if p not in other.values()}


def as_value(option: str, annotation: Any, text: str) -> Any:
    """Return the value of one option, of the type that a signature asks for.

    Raises:
        ConfigurationError: The option is empty (as an unset variable of a template leaves it), or cannot be read.
    """
    if not str(text or "").strip():
        raise ConfigurationError(f"option {option} is empty: give it a value, or leave it out")
    kinds = [kind for kind in _choices(annotation) if kind is not type(None)]
    lists = [kind for kind in kinds if get_origin(kind) is list]
    try:
        if lists:
            parts = [part.strip() for part in text.split(",")]
            if not all(parts):
                raise ConfigurationError(f"option {option} is a list with an empty part: take out a comma")
            return typed.convert(parts, lists[0], strict=False)
        return text if str in kinds else typed.convert(text.strip().lower(), annotation, strict=False)
    except msgspec.ValidationError:
        raise ConfigurationError(f"option {option} is not {' or '.join(map(_described, kinds))}") from None


def as_option(argument: str) -> str:
    """Spell an argument as an option: `rowsPerSend` for `rows_per_send`."""
    first, *others = argument.split("_")
    return first + "".join(map(str.capitalize, others))


def check_types(make: Callable[..., Any], values: Mapping[str, Any]) -> None:
    """Refuse arguments whose types differ from the signature's.

    Only text, numbers, booleans and lists are checked, and of mappings that their keys are text. Empty text is refused
    where no default is text, an empty list where the default is None, and a list with empty text everywhere.

    Args:
        make: The class or function that takes the arguments.
        values: The arguments by name, for example `locals()`.

    Raises:
        ConfigurationError: One has another type; the message names it, and does not repeat the value.
    """
    parameters = _parameters(make)
    for name, parameter in parameters.items():
        kinds = _choices(parameter.annotation)
        if all(kind in _PLAIN or get_origin(kind) is list for kind in kinds):
            check_type(name, values[name], parameter.annotation)
        elif _is_mapping(parameter.annotation) and not isinstance(values[name], tuple(_PLAIN & set(kinds))):
            _check_mapping(name, values[name])
    for name, parameter in parameters.items():
        value, may_lack = values[name], parameter.default is None
        may_be_empty = not may_lack and parameter.default is not parameter.empty
        if _is_empty(value) and not may_be_empty:
            raise ConfigurationError(f"{name} is empty: give it a value{', or leave it out' if may_lack else ''}")
        if isinstance(value, list | tuple) and any(isinstance(part, str) and not part.strip() for part in value):
            raise ConfigurationError(f"{name} is a list with an empty part: take that part out")


def _is_empty(value: Any) -> bool:
    return isinstance(value, str | list | tuple) and not (value.strip() if isinstance(value, str) else value)


def _check_mapping(name: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{name} must be a mapping of names to values, not {type(value).__name__}")
    if wrong := sorted({type(key).__name__ for key in value if not isinstance(key, str)}):
        raise ConfigurationError(f"the names in {name} must be text, not {', '.join(wrong)}")


def check_type(name: str, value: Any, annotation: Any) -> None:
    """Refuse a value of another type, with a ConfigurationError that does not repeat the value."""
    if isinstance(value, os.PathLike):
        plain_value: Any = os.fspath(value)
    elif isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
        plain_value = list(value) if isinstance(value, Collection) or hasattr(value, "__len__") else value
    else:  # numpy's numbers are none for msgspec
        plain_value = getattr(value, "item", lambda: value)()
    try:
        typed.convert(plain_value, annotation)
    except msgspec.ValidationError:
        kinds = [_described(kind) for kind in _choices(annotation) if kind is not type(None)]
        raise ConfigurationError(f"{name} must be {' or '.join(kinds)}, not {type(value).__name__}") from None


def check_seconds(name: str, seconds: float) -> None:
    """Refuse a timeout that no socket takes, with a ConfigurationError."""
    if not 0 < seconds <= MOST_SECONDS:
        raise ConfigurationError(f"{name} must be above 0 seconds and at most a day, not {seconds}")


def check_choice(name: str, value: str, choices: Collection[str]) -> str:
    """Return a value, if it is one of the choices; a ConfigurationError if it is none of them."""
    if value not in choices:
        raise ConfigurationError(f"{name} {value!r} is unknown: give one of {', '.join(choices)}")
    return value


def pairs(option: str, texts: Sequence[str] | None) -> dict[str, str]:
    """Read NAME=VALUE pairs. Errors repeat no value: it may be a password.

    `@FILE` stands for the lines of a file: everybody on a machine can read the arguments of its processes.

    Raises:
        ConfigurationError: One has no "=", or a file cannot be read.
    """
    values: dict[str, str] = {}
    for number, one in enumerate(texts or (), 1):
        for pair in _lines(option, one[1:]) if one.startswith("@") else [one]:
            name, equals, value = pair.partition("=")
            if not equals:
                raise ConfigurationError(f"{option} takes NAME=VALUE; number {number} of those given has no '='")
            values[name] = value
    return values


def _lines(option: str, file: str) -> list[str]:
    """Read the lines of a file without empty ones and comments."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigurationError(f"{option} cannot read the file {file}: {why}") from None
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def _parameters(make: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a signature, with types as values are converted to them.

    Literal is for type checkers: the caller checks the choices itself, so that its message names them, or an enum does.
    """
    parameters = inspect.signature(make, eval_str=True, locals=_ANNOTATIONS).parameters
    return {name: p.replace(annotation=_converted(p.annotation)) for name, p in parameters.items()}


def _converted(annotation: Any) -> Any:
    if isinstance(annotation, str):  # of a Setting, which only type checkers can read; an option of it is text
        return str
    kinds: list[Any] = []
    choices = _choices(annotation)
    is_enum = any(isinstance(kind, type) and issubclass(kind, Enum) for kind in choices)
    for kind in choices:
        if get_origin(kind) is Literal:
            kinds += [] if is_enum else map(type, get_args(kind))
        elif get_origin(kind) is tuple and get_args(kind)[-1] is Ellipsis:
            kinds.append(list[get_args(kind)[0]])  # type: ignore[misc]
        else:
            kinds.append(kind)
    return reduce(operator.or_, dict.fromkeys(kinds))


def _choices(annotation: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the one type itself."""
    return get_args(annotation) if get_origin(annotation) in (UnionType, Union) else (annotation,)


def _is_mapping(annotation: Any) -> bool:
    return any(get_origin(kind) is dict for kind in _choices(annotation))


def _described(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return f"one of {', '.join(choice.value for choice in kind)}"
    if get_origin(kind) is list:
        return "a list"
    return _KINDS.get(kind, "readable")
