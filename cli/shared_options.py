"""Options that several commands have, and what they name: systems, targets, a pipeline's own sinks."""

from __future__ import annotations

import importlib
import inspect
import sys
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onceward.core.contract.connector import connectors
from onceward.core.contract.targets import Target, sinks_target
from onceward.core.errors import ConfigurationError, named_text_of
from onceward.core.kit.extras import needing
from onceward.core.kit.text_options import pairs
from onceward.sinks import Sink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from onceward.core.contract.connector import Connector


def address_forms() -> str:
    """Return what --at takes, such as `kafka=HOST:PORT`, for each kind of system that is installed."""
    return either(f"{kind.name}={kind.address_form}" for kind in _installed() if kind.address_form)


def place_forms() -> str:
    """Return what a place looks like, such as `kafka:TOPIC`, in each kind of system that is installed."""
    return either(f"{kind.name}:{kind.place_form}" for kind in _installed() if kind.place_form)


def _installed() -> Iterable[type[Connector]]:
    try:
        return connectors().values()
    except ConfigurationError:  # help is shown nevertheless; whatever needs a connector raises it again
        return ()


def either(forms: Iterable[str]) -> str:
    """Return a list in words: `a, b or c`."""
    *first, last = [*forms] or ["…"]
    return " or ".join([", ".join(first), last] if first else [last])


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without this option, only show what would be done.")]
Pipeline = Annotated[str | None, typer.Option(help="Name of the pipeline; not needed if its log is in a folder.")]


@dataclass(kw_only=True)
class Access:
    """The addresses of systems, and the settings to reach them."""

    at: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SYSTEM=ADDRESS",
            help=f"A system: {address_forms()}; repeatable.",
        ),
    ] = None
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="SYSTEM:NAME=VALUE",
            help="A setting for the connection to a system, or a file of them: SYSTEM:@FILE; repeatable.",
        ),
    ] = None

    def __post_init__(self) -> None:
        self.addresses = _by_system("--at", "=", self.at)
        self._settings = _by_system("--set", ":", self.set_)
        for name, address in self.addresses.items():
            if len(address) > 1:
                raise ConfigurationError(f"--at {name}=…: given twice; one address is asked at a time")
            if not connectors()[name].address_form or not address[0]:
                raise ConfigurationError(f"--at {name}={address[0]}: {_address_of(name)}")
        for name in self._settings:
            if name not in self.addresses:
                raise ConfigurationError(f"--set {name}:… needs --at {name}={connectors()[name].address_form}")

    def system(self, name: str) -> Connector:
        """Return the connector to a system; to one of files without an address.

        Raises:
            ConfigurationError: Its address was not given, or a setting is wrong.
        """
        kind = connectors()[name]
        if name not in self.addresses and kind.address_form:
            raise ConfigurationError(f"give --at {name}={kind.address_form}")
        [address] = self.addresses.get(name, [""])
        return kind(address, pairs(f"--set {name}:", self._settings.get(name)))

    def systems(self) -> Iterator[Connector]:
        """Return the connectors to all systems whose address was given."""
        return map(self.system, self.addresses)


def _by_system(option: str, mark: str, texts: Iterable[str] | None) -> dict[str, list[str]]:
    addresses: dict[str, list[str]] = {}
    for text in texts or ():
        name, separator, rest = text.partition(mark)
        if not separator or name not in connectors():
            # Not the text itself: it may hold a password.
            raise ConfigurationError(f"{option} takes SYSTEM{mark}…; systems are {', '.join(connectors())}")
        addresses.setdefault(name, []).append(rest)
    return addresses


def _address_of(name: str) -> str:
    form = connectors()[name].address_form
    return f"an address looks like {name}={form}" if form else "this kind of system has no address"


def with_group(command: Callable[..., None]) -> Callable[..., None]:
    """Make a command take the fields of its dataclass parameter as options, a subclass's own first."""
    parameters = inspect.signature(command, eval_str=True).parameters
    [group] = [name for name, one in parameters.items() if is_dataclass(one.annotation)]
    kind: Any = parameters[group].annotation
    fields = inspect.signature(kind, eval_str=True).parameters
    options = [fields[name] for name in sorted(fields, key=lambda name: name not in kind.__annotations__)]

    def run(**given: Any) -> None:
        command(**{group: kind(**{one.name: given.pop(one.name) for one in options})}, **given)

    taken = [each for name, one in parameters.items() for each in (options if name == group else [one])]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {one.name: one.annotation for one in taken}
    keyword = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in taken]
    vars(run)["__signature__"] = inspect.Signature(keyword)
    return run


def targets_of(access: Access) -> list[Target]:
    """Return the targets at the addresses that are given.

    Raises:
        ConfigurationError: An extra is not installed, or a system's transactions cannot be found by its address.
    """
    targets = []
    for system in access.systems():
        with needing(system.extra):
            targets.append(system.target())
    return targets


def load_sinks(reference: str) -> Target:
    """Import the pipeline's own sinks: `module:name` of a sink, of several, or of a function that returns them.

    Raises:
        ConfigurationError: There is no such thing, it is none, or its import fails.
    """
    value = import_object("--sinks", reference, called=True)
    sinks = [value] if isinstance(value, Sink) else value
    if not isinstance(sinks, list | tuple) or not all(isinstance(sink, Sink) for sink in sinks):
        raise ConfigurationError(f"{reference} is neither a sink nor a list of sinks: {type(value).__name__}")
    return sinks_target(sinks, f"sinks of {reference}")


def import_object(option: str, reference: str, *, called: bool = False) -> Any:
    """Import the `module:name` of an option, from the current folder first, and if `called`, call it if possible.

    Raises:
        ConfigurationError: There is no such thing, or the module or the call fails.
    """
    module, _, name = reference.partition(":")
    if not module or not name.isidentifier():
        raise ConfigurationError(f"{option} takes module:name, not {reference!r}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        value = getattr(importlib.import_module(module), name)
        return value() if called and callable(value) else value
    except (Exception, SystemExit) as error:
        raise ConfigurationError(f"cannot import {reference}: {named_text_of(error)}") from error
    finally:
        sys.path.pop(0)
