"""What a build does beyond pyproject.toml: an editable installation of a source distribution gets its links."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_FOLDERS: Final = ("cli", "connectors", "core", "sinks", "sources", "testing")


class Links(BuildHookInterface):
    """Make the links of `src/onceward`, which a source distribution does not hold, for an editable installation."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - signature
        """Make them where they are missing."""
        if version != "editable":
            return
        for folder in _FOLDERS:
            link = Path(self.root) / "src" / "onceward" / folder
            if not link.exists():
                link.symlink_to(Path("..", "..", folder))
