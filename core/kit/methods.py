"""Methods of subclasses that would do nothing when they are called."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from ..errors import LifecycleError

if TYPE_CHECKING:
    from collections.abc import Collection


def refuse_idle_methods(kind: type, called: Collection[str], listed: Collection[str] = ()) -> None:
    """Refuse a class whose own methods are coroutines or generators where they are simply called.

    Args:
        kind: The class.
        called: Methods that are neither.
        listed: Methods that may be generators.

    Raises:
        LifecycleError: A method is; the message names it.
    """
    for name, method in vars(kind).items():
        is_async = inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)
        if (is_async and name in {*called, *listed}) or (inspect.isgeneratorfunction(method) and name in called):
            raise LifecycleError(
                f"{kind.__qualname__}.{name} is {'async' if is_async else 'a generator'}, so a call of it does "
                "nothing. Make it a plain function that returns when its work is done"
                f"{' (asyncio.run can help)' if is_async else ''}"
            )
