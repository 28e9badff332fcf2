"""The pages' programs, and the package as a wheel."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import onceward

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def build_wheel(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder, ROOT]
    version = {"SETUPTOOLS_SCM_PRETEND_VERSION": onceward.__version__}  # another one, if a file has been edited since
    subprocess.run(command, env={**os.environ, **version}, check=True)
    [wheel] = folder.glob("onceward-*.whl")
    return wheel
