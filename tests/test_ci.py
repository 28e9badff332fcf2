"""`.ci/run`, with a `make` that only writes down its targets."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from .scenarios import ROOT

if TYPE_CHECKING:
    from pathlib import Path

MAKE = """#!/bin/sh
echo "$*" >> made
test "$*" != test || exit 1
"""


def test_what_an_earlier_run_left_does_not_stand_for_what_failed_in_this_one(tmp_path: Path) -> None:
    """Lint fails: everything is run again, and not only the integration test that failed some day."""
    programs = {".ci/run": (ROOT / ".ci" / "run").read_text(), "bin/make": MAKE, "scripts/with-docker.sh": "#!/bin/sh"}
    for name, text in programs.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o700)
    (tmp_path / ".pytest_cache" / "v" / "cache").mkdir(parents=True)
    (tmp_path / ".pytest_cache" / "v" / "cache" / "lastfailed").write_text('{"integration/test_ui.py::test_x": true}')
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    subprocess.run([tmp_path / ".ci" / "run"], env={**os.environ, "PATH": path}, check=True, timeout=60)
    assert (tmp_path / "made").read_text().splitlines() == ["docs", "test", "check long", "integration"]
