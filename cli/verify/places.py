"""What is compared: topics, tables, folders and keys, by the names that a person gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceward.core.contract.connector import connectors
from onceward.core.errors import ConfigurationError
from onceward.core.kit.extras import needing

from ..shared_options import import_object, place_forms

if TYPE_CHECKING:
    from onceward.core.contract.place import Place
    from onceward.core.operations.row_comparison import RowMapping

    from ..shared_options import Access


def check_place(text: str, access: Access) -> None:
    """Refuse a place that is not such as `kafka:TOPIC`, or is in a system whose address is not given.

    Raises:
        ConfigurationError: It is so.
    """
    system, _, name = text.partition(":")
    kind = connectors().get(system)
    if kind is None or not kind.place_form or not name:
        # Not more of the text than the system: it may be an address with a password.
        raise ConfigurationError(f"{system!r} is not a place: give {place_forms()}")
    if kind.address_form and system not in access.addresses:
        raise ConfigurationError(f"{text} needs --at {system}={kind.address_form}")


def place_of(text: str, access: Access) -> Place:
    """Return the place that is called so, such as `kafka:TOPIC`.

    Raises:
        ConfigurationError: There is no such system, its address was not given, or an extra is not installed.
    """
    check_place(text, access)
    system, _, name = text.partition(":")
    with needing(connectors()[system].extra):
        return access.system(system).place(name)


def load_function(reference: str) -> RowMapping:
    """Import the function from a source's rows to a target's: of record batches."""
    function = import_object("--map", reference)
    if not callable(function):
        raise ConfigurationError(f"{reference} is not a function")
    return function  # type: ignore[no-any-return]
