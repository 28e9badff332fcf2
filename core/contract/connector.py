"""The contract of connectors: what onceward knows of one kind of system, beyond its sinks and sources.

A sink says how rows are committed; its connector says everything else: how the command line reaches the system, what is
prepared in it under onceward's names, what it holds, and whether it is set up as the guarantee needs. Commands, formats
for Spark and monitoring know no system by name: they ask the connectors. These are found by the entry point group
`onceward.connectors`, whose names are those of the connectors, so a package of somebody else adds one in the same way
as onceward adds its own. dlt's `Destination` and Airbyte's `spec`, `check` and `read` are the models.

Every command imports the modules that define connectors, so these import no package of an extra. A connector either
imports those inside of its methods, or names the subclass that has the methods (`implementation`), which the base class
imports when one is called.
"""

from __future__ import annotations

import re
from abc import ABC
from contextlib import suppress
from functools import cache, wraps
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeVar, cast

from ..errors import ConfigurationError, named_text_of
from .refusals import Refusal, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from .findings import Finding
    from .place import Place
    from .sink import Sink
    from .source import ResettableSource
    from .targets import Target

GROUP: Final = "onceward.connectors"
"""The group of entry points."""
_LONGEST: Final = 2_000
"""Characters of an address, a place or the value of a setting, beyond which onceward did not write it."""
_Method = TypeVar("_Method", bound="Callable[..., Any]")


class SystemAddress(NamedTuple):
    """Where a sink writes or a source reads, as options of the command line say it. It holds no secret."""

    address: str
    """Address of the system, as `--at NAME=ADDRESS` takes it."""
    settings: tuple[str, ...] = ()
    """Settings of the connection, `SETTING=VALUE` each, as `--set NAME:SETTING=VALUE` takes them."""
    missing: str = ""
    """Secret that a person must add, in words: the connector's `login`; empty if nothing is missing."""
    place: str = ""
    """Place that a sink writes to there, as `--place NAME:PLACE` takes it; empty if it has no such name."""


def _implemented(method: _Method) -> _Method:
    """Make a method that asks the connector's `implementation`, and that is the default where there is none."""

    @wraps(method)
    def ask(owner: Any, *args: Any, **kwargs: Any) -> Any:
        kind: type[Connector] = owner if isinstance(owner, type) else type(owner)
        whole = _imported(kind.implementation) if kind.implementation else kind
        if issubclass(kind, whole):
            return method(owner, *args, **kwargs)
        one = whole if owner is kind else whole(owner.address, owner.settings)
        return getattr(one, method.__name__)(*args, **kwargs)

    return cast("_Method", ask)


class Connector(ABC):
    """One kind of system; an instance is one system of that kind, at an address.

    Args:
        address: Address of the system, as `--at NAME=ADDRESS` gives it.
        settings: Further settings of the connection, as `--set NAME:SETTING=VALUE` gives them.

    Attributes:
        name: Name of the kind, as in `--at kafka=…`, `kafka:orders` and `format("onceward-kafka")`.
        sink: The class of its sink, as `module:class`; empty if it has none.
        source: The class of its source, likewise.
        address_form: Form of an address, for help and messages; empty if the system has none.
        place_form: Form of a place's name, likewise; empty if nothing can be read back.
        extra: The extra of onceward that it needs; empty if none.
        implementation: The subclass that has the methods below, as `module:class`; empty if the class has them itself.
            Its module may import packages of the extra, because it is imported when a method is called.
        lists_transactions: True if `target` finds transactions by the address. A class that overrides `target` need not
            say so; one whose `implementation` does must.
        spark_format: The class of its format for Spark, as `module:class`, where that does more than write into the
            sink; empty for one that is made of the sink.
        address_pattern: Regular expression of the addresses that may become a part of a command to copy. They are read
            back from a decision log, so it must match nothing that runs code, names a file of code or holds a secret;
            empty: none may.
        place_pattern: The same for places, which are read back from the log and from the notes beside it.
        setting_patterns: The same for values of settings, by the name of the setting.
        login: Secret that a person must add to a command if a login is needed, in words.
    """

    name: ClassVar[str]
    sink: ClassVar[str] = ""
    source: ClassVar[str] = ""
    address_form: ClassVar[str] = ""
    place_form: ClassVar[str] = ""
    extra: ClassVar[str] = ""
    implementation: ClassVar[str] = ""
    lists_transactions: ClassVar[bool] = False
    spark_format: ClassVar[str] = ""
    address_pattern: ClassVar[str] = ""
    place_pattern: ClassVar[str] = ""
    setting_patterns: ClassVar[Mapping[str, str]] = {}
    login: ClassVar[str] = ""

    def __init__(self, address: str = "", settings: Mapping[str, str] | None = None) -> None:
        self.address = address
        self.settings = dict(settings or {})

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Note that a class which overrides `target` lists transactions, unless it says otherwise."""
        super().__init_subclass__(**arguments)
        if "target" in vars(cls) and "lists_transactions" not in vars(cls):
            cls.lists_transactions = True

    @classmethod
    def sink_class(cls) -> type[Sink]:
        """Import the class of its sink.

        Raises:
            ImportError: A package is missing.
        """
        kind: type[Sink] = _imported(cls.sink)
        return kind

    @classmethod
    def source_class(cls) -> type[ResettableSource]:
        """Import the class of its source.

        Raises:
            ImportError: A package is missing.
        """
        kind: type[ResettableSource] = _imported(cls.source)
        return kind

    @_implemented
    def target(self) -> Target:
        """Return the object that lists and ends transactions here, of any pipeline and sink; `onceward txn` asks it.

        Raises:
            RefusedError: They can be listed only through the pipeline's own sinks.
        """
        raise RefusedError(
            f"{self.name}: transactions of this kind of system cannot be found by its address", Refusal.NEEDS_SINKS
        )

    @classmethod
    @_implemented
    def address_of(cls, part: Sink | ResettableSource) -> SystemAddress | None:  # noqa: ARG003
        """Return the address of the system that a sink or source uses.

        None if `--at` cannot name it, or does not find a sink's transactions there.

        Each decision records it, and `onceward status` puts it into the command to copy, if the class's patterns allow.
        """
        return None

    @_implemented
    def place(self, name: str) -> Place:
        """Return the place of this name, which `onceward verify` reads again.

        Raises:
            ConfigurationError: Nothing can be read back, or the name is not valid.
        """
        raise ConfigurationError(f"{self.name}:{name}: nothing can be read back from this kind of system")

    @_implemented
    def check(self, names: Sequence[str], pipeline: str | None) -> Iterable[Finding]:  # noqa: ARG002
        """Check whether the system is set up as the guarantee needs; `onceward doctor` asks. Changes nothing.

        Args:
            names: Places in it that are checked, too.
            pipeline: Pipeline whose rights are checked, too.
        """
        return ()

    @classmethod
    @_implemented
    def check_parts(
        cls,
        sinks: Sequence[Sink],  # noqa: ARG003
        sources: Sequence[ResettableSource],  # noqa: ARG003
        pipeline: str | None,  # noqa: ARG003
    ) -> Iterable[Finding]:
        """Check the systems of these sinks and sources, which are of this kind; `onceward explain` asks."""
        return ()

    @classmethod  # noqa: B027 - not every kind of system can be asked
    @_implemented
    def reach(cls, sink: Sink) -> None:
        """Ask the target of a sink for an answer, from this process, without changing anything.

        On a cluster, the start of a query asks from executors: what answers the driver may be closed to them. Bounded
        in time; nothing is asked by default.

        Raises:
            SinkError: It does not answer, or refuses this client.
        """

    @classmethod
    @_implemented
    def readers_lag(cls, sink: Sink) -> int | None:  # noqa: ARG003
        """Count the records in a sink's target that its readers cannot see yet; None if that is not known.

        The metrics ask at most every 15 s, in a thread of their own.

        Raises:
            SinkError: The system does not answer.
        """
        return None

    @classmethod
    def check_log(cls, url: str) -> Iterable[Finding]:  # noqa: ARG003
        """Check the server of a decision log, if a store of this URL is of this kind; `onceward doctor` asks.

        Each connector is asked for each URL, so this method is never left to the `implementation`.
        """
        return ()


def _imported(reference: str) -> Any:
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


@cache
def connectors() -> Mapping[str, type[Connector]]:
    """Return the connectors that are installed, by their names.

    Raises:
        ConfigurationError: One cannot be loaded, or two have the same name.
    """
    classes: dict[str, type[Connector]] = {}
    for point in sorted(entry_points(group=GROUP)):
        try:
            loaded = point.load()
        except Exception as error:
            raise ConfigurationError(
                f"the connector {point.name} ({point.value}) cannot be loaded: {named_text_of(error)}. Update "
                "or remove its package"
            ) from error
        if not (isinstance(loaded, type) and issubclass(loaded, Connector) and loaded.name == point.name):
            raise ConfigurationError(f"{point.value} is not a Connector that is called {point.name}")
        if classes.setdefault(point.name, loaded) is not loaded:
            raise ConfigurationError(f"two packages have a connector {point.name}: remove one of them")
    return classes


def address_to_note(part: Any) -> dict[str, Any]:
    """Return the system of a sink or source as JSON values, without secrets; empty if `--at` cannot name it."""
    with suppress(Exception):  # somebody's connector: only a note needs it
        connector = connector_of(part)
        address = connector.address_of(part) if connector is not None else None
        return {"system": connector.name, **address._asdict()} if connector and address else {}
    return {}


def noted_address(noted: object) -> tuple[str, SystemAddress]:
    """Return the system and address that `address_to_note` gave, without what the connector's patterns do not match.

    Others may have changed it since, so no text of it is taken over unchecked: an address that does not match has no
    settings either, and the words about the login are the connector's own. The system is empty if it is not known.
    """
    fields = noted if isinstance(noted, dict) else {}
    name = fields.get("system")
    kind = connectors().get(name) if isinstance(name, str) else None
    if kind is None:
        return "", SystemAddress("")
    place = _matching(kind.place_pattern, fields.get("place"))
    address = _matching(kind.address_pattern, fields.get("address"))
    given = fields.get("settings")
    settings = [each for each in given if isinstance(each, str)] if isinstance(given, list | tuple) else []
    pairs = [each.partition("=") for each in settings]
    if not all(_matching(kind.setting_patterns.get(setting, ""), value) for setting, _, value in pairs):
        address = ""  # without its settings, the address may lead elsewhere
    missing = kind.login if fields.get("missing") else ""
    return kind.name, SystemAddress(address, tuple(settings) if address else (), missing if address else "", place)


def _matching(pattern: str, value: object) -> str:
    is_plain = isinstance(value, str) and len(value) <= _LONGEST and pattern and re.fullmatch(pattern, value, re.ASCII)
    return str(value) if is_plain else ""


def connector_of(part: object) -> type[Connector] | None:
    """Return the connector of a sink or source, by its class or the one that it is derived from."""
    names = {f"{each.__module__}:{each.__qualname__}" for each in type(part).__mro__}
    return next((one for one in connectors().values() if names & {one.sink, one.source}), None)
