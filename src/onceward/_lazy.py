"""Names that a module offers and imports when they are asked for, and what it says where their extra is missing.

A name whose extra is not installed is an ImportError for `from module import name`, an AttributeError for
`module.name`, as hasattr expects, and left out of `from module import *`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_IMPORTS: Final = "importlib._bootstrap"
"""Name of the module in which an import statement looks for a name before it takes it."""


class LazyNames:
    """The names of one module; `attribute` is its `__getattr__`, `listed` its `__dir__`.

    Args:
        module: Full name of the module.
        table: Modules below `onceward`, each with its names, by the extra that they need ("" for none).
        more: Names that the module has by itself.

    Attributes:
        homes: Module and extra of each name.
    """

    def __init__(self, module: str, table: Mapping[str, Mapping[str, str]], more: tuple[str, ...] = ()) -> None:
        self._module, self._more = module, more
        self.homes = {
            name: (home, extra)
            for extra, modules in table.items()
            for home, names in modules.items()
            for name in names.split()
        }

    def attribute(self, name: str) -> Any:
        """Return a name's value; import it first."""
        owner = sys.modules[self._module]
        if name == "__all__":
            return [*(each for each in sorted(self.homes) if self._is_available(each)), *self._more]
        if name not in self.homes:
            raise AttributeError(f"module {self._module!r} has no attribute {name!r}", name=name, obj=owner)
        try:
            return self._load(name)
        except ImportError as error:
            from .core.errors import MissingExtraError, MissingNameError  # noqa: PLC0415 - `import onceward` loads nothing

            called_from = sys._getframe(1).f_globals.get("__name__")  # noqa: SLF001 - the only way to tell an import
            if not isinstance(error, MissingExtraError) or called_from == _IMPORTS:
                raise
            raise MissingNameError(error.message, name=name, obj=owner) from None

    def listed(self) -> list[str]:
        """Return all names, whether their extras are installed or not."""
        return sorted([*self.homes, *self._more])

    def _is_available(self, name: str) -> bool:
        from .core.errors import MissingExtraError  # noqa: PLC0415

        try:
            self._load(name)
        except MissingExtraError:
            return False
        return True

    def _load(self, name: str) -> Any:
        """Import a name, and keep it.

        Raises:
            MissingExtraError: Its extra is not installed, or only an older version of what it installs.
        """
        home, extra = self.homes[name]
        try:
            value = getattr(import_module(home, "onceward"), name)
        except ImportError as error:
            missing = (error.name or "").partition(".")[0]
            if not extra or missing in ("", "onceward"):
                raise
            from .core.errors import MissingExtraError  # noqa: PLC0415

            advice = f"{name} needs {_requirement(missing, extra)}: pip install 'onceward[{extra}]'"
            raise MissingExtraError(advice, name=missing) from None
        setattr(sys.modules[self._module], name, value)
        return value


def _requirement(package: str, extra: str) -> str:
    """Return the package that is missing, or the version that is needed and the one that is installed."""
    from importlib import metadata  # noqa: PLC0415 - a third of the time of `import onceward`

    try:
        __import__(package)  # succeeds if only a part of the package is missing
        installed = metadata.version(package)
        required = [each for each in metadata.requires("onceward") or [] if f"extra == '{extra}'" in _quoted(each)]
    except ImportError:  # PackageNotFoundError is one, too
        return package
    needed = next((each.partition(";")[0].strip() for each in required if each.startswith(package)), package)
    return f"{needed}, and {package} {installed} is installed"


def _quoted(marker: str) -> str:
    return marker.replace('"', "'")
