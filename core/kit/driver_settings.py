"""One description of a setting, from which signatures, docstrings, options and the tables of docs/ come.

A TypedDict names the settings that one way of running a pipeline takes. Type checkers and editors read it through
`**settings: Unpack[…]`. Each of its keys is annotated with a type and with a Setting, which says the rest.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar, cast, get_args

from .text_options import as_option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

S = TypeVar("S")
"""The TypedDict of a driver's settings."""
_Taker = TypeVar("_Taker", bound="Callable[..., Any]")
REQUIRED: Final = inspect.Parameter.empty
OF_FORMATS: Final[dict[str, str]] = {}
"""Options that each format for Spark has beside those of its sink, and the setting that each gives.

They are here once the settings are described (core/contract/pipeline_settings.py), as they are where formats are used.
"""
_PLACE: Final = re.compile(r"^    settings: .*\n?(?:      .*\n?)*", re.MULTILINE)
"""The entry of a docstring in whose place the entry of each setting stands at run time."""
_WIDTH: Final = 120


@dataclass(frozen=True)
class Setting:
    """What is said of a setting beside its name and type.

    Attributes:
        meaning: The entry in docstrings and in the tables of docs/: whole sentences, with units.
        default: The value if none is given.
        option: Name of the formats' option; by default the setting's name in camel case.
        also: Sentences that are true of one driver alone, by its name.
        refused: Reasons why drivers do not take it, by their names. A message says "which", and then the reason.
    """

    meaning: str
    default: Any = REQUIRED
    option: str = ""
    also: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


class Driver(Generic[S]):
    """A way of running a pipeline, and the settings that it takes.

    Args:
        name: Name of the function, the class or the way, for messages.
        kind: TypedDict of the settings, each annotated with a Setting.

    Attributes:
        settings: The settings by name, those without a default first.
        types: Their types; as text where only type checkers know them.
    """

    known: ClassVar[dict[str, Setting]] = {}
    """The settings of all drivers by name."""

    def __init__(self, name: str, kind: type[S]) -> None:
        self.name = name
        described = {key: _parts(annotation) for key, annotation in kind.__annotations__.items()}
        ordered = sorted(described.items(), key=lambda one: one[1][1].default is not REQUIRED)
        self.settings = {key: setting for key, (_, setting) in ordered}
        self.types = {key: type_ for key, (type_, _) in described.items()}
        for key, setting in self.settings.items():
            self.known.setdefault(key, setting)

    def filled(self, given: S) -> S:
        """Return all settings: those that a caller has given, and the defaults of the others.

        Raises:
            TypeError: One is unknown or missing, as Python says it of arguments; if another driver takes it, the
                message says why this one does not.
        """
        values = cast("Mapping[str, Any]", given)
        for name in values.keys() - self.settings.keys():
            why = f", which {reason}" if (reason := refusal(self.name, name)) else ""
            raise TypeError(f"{self.name}() got an unexpected keyword argument {name!r}{why}")
        whole = {name: setting.default for name, setting in self.settings.items()} | dict(values)
        for name, value in whole.items():
            if value is REQUIRED:
                raise TypeError(f"{self.name}() missing a required keyword-only argument: {name!r}")
        return cast("S", whole)

    def described(self, taker: _Taker) -> _Taker:
        """Give a function or a class that takes `**settings` the signature and the docstring that it has in full.

        Editors read `Unpack` and the TypedDict instead.
        """
        function: Any = taker.__init__ if isinstance(taker, type) else taker  # type: ignore[misc]
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        settings = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=self.types[name])
            for name, one in self.settings.items()
        ]
        function.__signature__ = signature.replace(parameters=[*own, *settings])
        if taker.__doc__:
            taker.__doc__ = _PLACE.sub("".join(self._entries()), inspect.cleandoc(taker.__doc__))
        return taker

    def _entries(self) -> Iterable[str]:
        for name, one in self.settings.items():
            text = " ".join(filter(None, [f"{name}: {one.meaning}", one.also.get(self.name)]))
            yield textwrap.fill(text, _WIDTH - 4, initial_indent=" " * 4, subsequent_indent=" " * 8) + "\n"


def option_of(name: str) -> str:
    """Return the name of the formats' option that gives a setting."""
    return Driver.known[name].option or as_option(name)


def refusal(driver: str, name: str) -> str:
    """Return the reason why a driver does not take a setting; empty if it does, or if nobody does."""
    return Driver.known[name].refused.get(driver, "") if name in Driver.known else ""


def _parts(annotation: Any) -> tuple[Any, Setting]:
    """Return the type and the Setting of `Annotated[…]`, which may stand in `Required[…]`."""
    if not hasattr(annotation, "__metadata__"):
        [annotation] = get_args(annotation)
    type_, [setting] = annotation.__origin__, annotation.__metadata__
    return getattr(type_, "__forward_arg__", type_), setting
