"""Commands of onceward in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src"
MAIN = "from onceward.cli.main import main; main()"


def onceward(*arguments: str, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"}
    return subprocess.run(
        [sys.executable, "-c", MAIN, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**kept, "PYTHONPATH": str(SOURCE), "ONCEWARD_DEV_HOME": str(home), **environment},
    )
