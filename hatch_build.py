"""What a build does beyond pyproject.toml: it records the version, and an editable installation gets its links."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_FOLDERS: Final = ("cli", "connectors", "core", "sinks", "sources", "testing")
_MODULE: Final = Path("onceward", "_version.py")


class Build(BuildHookInterface):
    """Write `onceward/_version.py` into a wheel; into the source tree only for an editable installation.

    An editable installation of a source distribution gets the links of `src/onceward`, too, which the archive lacks.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the module and make the links that are missing."""
        if self.target_name != "wheel":
            return
        source = Path(self.root, "src")
        text = f'"""Version of these files; hatch_build.py writes it."""\n\n__version__ = "{self.metadata.version}"\n'
        if version == "editable":
            (source / _MODULE).write_text(text)
            for folder in _FOLDERS:
                link = source / "onceward" / folder
                if not link.exists():
                    link.symlink_to(Path("..", "..", folder))
            return
        # Elsewhere than in the tree, where another version may be installed for work, and tests may be running.
        self._scratch = tempfile.TemporaryDirectory()
        module = Path(self._scratch.name, _MODULE.name)
        module.write_text(text)
        build_data["force_include"][str(module)] = str(_MODULE)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002 - signature
        """Delete the module that was written for the archive."""
        if version != "editable" and self.target_name == "wheel":
            self._scratch.cleanup()
