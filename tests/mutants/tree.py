"""A copy of the code and its tests, into which one mutant after another is put."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from .catalog import ROOT, MutantError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .catalog import Mutant

_LEFT_OUT = (
    *(".git", ".venv", ".run", ".cache", ".mypy_cache", ".ruff_cache", ".pytest_cache"),
    *("__pycache__", "build", "dist", "spark-warehouse"),
)
_FAST = ("tests", "--ignore=tests/test_mutants.py", "-m", "not slow")
"""All but the test that compares the code with the list of mutants."""
_PYTEST = ("-m", "pytest", "-x", "-q", "--tb=no", "-rfE", "-p", "no:randomly", "-p", "no:cacheprovider")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?::[^\s\[]+)", re.MULTILINE)
_PASSED, _FAILURES = 0, (1, 2)
"""pytest-xdist calls a run that ends at its first failure interrupted."""
TEST_SECONDS = 60
"""A test that hangs has failed."""
RUN_SECONDS = 900


@dataclass(frozen=True)
class Ran:
    """What a run of tests said.

    Attributes:
        failed: The first test that failed; None if all passed.
    """

    failed: str | None


class Tree:
    """A copy in a folder of its own. Use as a context manager.

    The links in src/onceward are relative, so they lead into the copy; guard.py makes sure that the tests do, too.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="onceward-mutants-")
        self.root = Path(self._folder.name, "tree")

    def __enter__(self) -> Self:
        shutil.copytree(ROOT, self.root, symlinks=True, ignore=shutil.ignore_patterns(*_LEFT_OUT))
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """The mutant is in the copy inside the block."""
        path = self.root / mutant.file
        right = path.read_text()
        self._write(path, mutant.applied(right))
        try:
            yield
        finally:
            self._write(path, right)

    def test(self, tests: Sequence[str]) -> Ran:
        """Run these tests until one fails.

        Raises:
            MutantError: They could not be run: the code does not import, a test is not there, or other code was used.
        """
        return self._run([*tests, "-m", "not slow"])

    def test_all(self) -> Ran:
        """Run all fast tests until one fails; see test."""
        return self._run([*_FAST, "--numprocesses", "2"])

    def _run(self, arguments: Sequence[str]) -> Ran:
        command = [sys.executable, *_PYTEST, "-p", "tests.mutants.guard", f"--timeout={TEST_SECONDS}", *arguments]
        # Folders of tests are in a place of their own: pytest cleans up what it finds, also another run's.
        own = {"PYTHONPATH": str(self.root / "src"), "PYTEST_DEBUG_TEMPROOT": self._folder.name}
        try:
            done = subprocess.run(
                command,
                cwd=self.root,
                env={**os.environ, **own},
                capture_output=True,
                text=True,
                check=False,
                timeout=RUN_SECONDS,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            raise MutantError(f"the tests did not end within {RUN_SECONDS} s") from None
        if done.returncode == _PASSED:
            return Ran(None)
        failed = _FAILED.search(done.stdout)
        if done.returncode not in _FAILURES or failed is None:
            raise MutantError(f"pytest ended with {done.returncode}: {done.stdout[-1500:]}{done.stderr[-1500:]}")
        return Ran(failed[1])

    @staticmethod
    def _write(path: Path, text: str) -> None:
        """Also forget the compiled file: it is taken for current by the second of its source, and by its size."""
        path.write_text(text)
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()
