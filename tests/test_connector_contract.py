"""What a connector may leave to a subclass that is imported later (`Connector.implementation`), and what it may not."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from onceward.connectors import Connector, Target, connectors, ok
from onceward.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from onceward.connectors import Finding

METHODS = ("target", "place", "check", "check_parts", "address_of", "reach", "readers_lag")


class Shelves(Connector):
    """A connector that says only what can be said without a client."""

    name = "shelves"
    implementation = "shelves_client:Whole"
    lists_transactions = True


class Whole(Shelves):
    """The same, with a client."""

    def target(self) -> Target:
        where = f"{self.address} {self.settings}"
        return Target(where, names=lambda _: [], known=lambda _: [], holds=lambda *_: False, sink=lambda _: None)  # type: ignore[arg-type, return-value]

    def check(self, names: Sequence[str], pipeline: str | None) -> Iterable[Finding]:
        return [ok("shelf", f"{self.address} {name} {pipeline}") for name in names]

    @classmethod
    def readers_lag(cls, sink: Any) -> int | None:  # noqa: ARG003
        return 7


class InOne(Connector):
    """A connector of somebody's that has its methods itself."""

    name = "in-one"

    def target(self) -> Target:
        raise ConfigurationError("not today")


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("shelves_client")
    module.Whole = Whole  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "shelves_client", module)


@pytest.mark.usefixtures("client")
def test_the_implementation_answers_for_the_class_that_names_it() -> None:
    system = Shelves("here", {"a": "b"})
    assert system.target().title == "here {'a': 'b'}"
    assert [one.found for one in system.check(["x"], pipeline="p")] == ["here x p"]
    assert Shelves.readers_lag(None) == 7  # type: ignore[arg-type]


@pytest.mark.usefixtures("client")
def test_what_the_implementation_does_not_have_is_the_default() -> None:
    assert Shelves.address_of(None) is None  # type: ignore[arg-type]
    assert list(Shelves.check_parts([], [], None)) == []


def test_the_implementation_is_imported_when_a_method_is_called_and_not_before() -> None:
    assert Shelves("here").address == "here"
    assert list(Shelves.check_log("postgresql://log")) == []
    with pytest.raises(ModuleNotFoundError, match="shelves_client"):
        Shelves("here").target()


def test_a_connector_without_an_implementation_has_its_methods_itself() -> None:
    with pytest.raises(ConfigurationError, match="not today"):
        InOne().target()
    assert InOne.lists_transactions
    assert not Connector.lists_transactions


@pytest.mark.parametrize(
    "kind", [one for one in connectors().values() if one.implementation], ids=lambda kind: kind.name
)
def test_an_implementation_has_the_same_methods_and_is_described_rightly(kind: type[Connector]) -> None:
    module, _, name = kind.implementation.partition(":")
    whole: type[Connector] = getattr(__import__(module, fromlist=[name]), name)
    assert issubclass(whole, kind)
    assert whole.check_log.__func__ is kind.check_log.__func__, "it is asked for each URL, without an import"  # type: ignore[attr-defined]
    assert kind.lists_transactions is (inspect.unwrap(whole.target) is not inspect.unwrap(Connector.target))
    assert any(inspect.unwrap(getattr(whole, each)) is not inspect.unwrap(getattr(Connector, each)) for each in METHODS)
