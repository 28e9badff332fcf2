"""Functions and methods of users that cannot be meant: they do nothing when called, or hide a base's private name."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING

from ..errors import LifecycleError

if TYPE_CHECKING:
    from collections.abc import Collection


def refuse_idle_methods(kind: type, called: Collection[str], listed: Collection[str] = ()) -> None:
    """Refuse a class whose own methods are coroutines or generators where they are simply called.

    Args:
        kind: The class to check.
        called: Methods that are neither.
        listed: Methods that may be generators.

    Raises:
        LifecycleError: A method is; the message names it.
    """
    for name, method in vars(kind).items():
        if name in {*called, *listed} and (why := idle(method, listed=name in listed)):
            raise LifecycleError(f"{kind.__qualname__}.{name} is {why}")


def idle(function: object, *, listed: bool = False) -> str:
    """Return why a call of this function does nothing, and what to do; empty if it does something.

    Args:
        function: A function, a partial one, or an object that can be called.
        listed: True if it may be a generator.
    """
    call = function if inspect.isroutine(function) or isinstance(function, partial) else type(function).__call__
    is_async = inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call)
    if not (is_async or (inspect.isgeneratorfunction(call) and not listed)):
        return ""
    return (
        f"{'async' if is_async else 'a generator'}, so a call of it does nothing. Make it a plain function that "
        f"returns when its work is done{' (asyncio.run can help)' if is_async else ''}"
    )


def refuse_hidden_names(kind: type) -> None:
    """Refuse a class of a user whose attribute has the name of a private one of the base classes to subclass.

    The base calls that name for its own purposes, and would call the subclass's. Who subclasses a finished sink of a
    connector changes it on purpose, so its private names are not compared.

    Args:
        kind: The class to check.

    Raises:
        LifecycleError: It does; the message names the attribute and the base class.
    """
    if _is_own(kind):
        return
    for name in vars(kind):
        if not name.startswith("_") or name.endswith("__"):
            continue
        hidden = next((base for base in kind.__mro__[1:] if _is_to_subclass(base) and name in vars(base)), None)
        if hidden is not None:
            raise LifecycleError(
                f"{kind.__qualname__}.{name} hides a private attribute of {hidden.__name__}, which calls it for its "
                f"own purposes. Give it another name, or begin it with two underscores: _{name}"
            )


def _is_to_subclass(kind: type) -> bool:
    return kind.__module__.startswith(("onceward.core.", "onceward.sinks", "onceward.sources"))


def _is_own(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "onceward"
