"""What a build does beyond pyproject.toml.

It refuses a Python that is too old, records the version, and gives an editable installation its links.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

_FOLDERS: Final = ("cli", "connectors", "core", "sinks", "sources", "testing")
_MODULE: Final = Path("onceward", "_version.py")
_OLDEST_PYTHON: Final = (3, 11)


class Python(MetadataHookInterface):
    """Refuse a Python that is too old before pip looks for packages that fit it.

    With extras, pip 23 reads `requires-python` of a folder only after it has fetched what the extras need: 500 MB.
    """

    def update(self, metadata: dict[str, Any]) -> None:  # noqa: ARG002 - signature
        """Check the Python that makes the metadata, which is the one that is installed for.

        Raises:
            SystemExit: It is too old.
        """
        if sys.version_info < _OLDEST_PYTHON:
            needed = ".".join(map(str, _OLDEST_PYTHON))
            here = ".".join(map(str, sys.version_info[:3]))
            raise SystemExit(f"onceward needs Python {needed} or newer, and this is {here} ({sys.executable})")


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
