"""Which version a package gets, and what `onceward.__version__` is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import onceward

ROOT = Path(__file__).parents[1]
ARCHIVAL = """\
node: $Format:%H$
node-date: $Format:%cI$
describe-name: $Format:%(describe:tags=true,match=*[0-9]*)$
"""
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def git(checkout: Path, *command: str) -> str:
    identity = [
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@localhost",
        "-c",
        "tag.gpgSign=false",
        "-c",
        "commit.gpgSign=false",
    ]
    return run(checkout, "git", *identity, *command)


def commit(checkout: Path) -> str:
    git(checkout, "commit", "--quiet", "--allow-empty", "-m", "something")
    return git(checkout, "rev-parse", "HEAD")


def version(tree: Path) -> str:
    return run(tree, sys.executable, "-B", "-m", "hatchling", "version").splitlines()[-1]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository of two commits, with all that a version is made from, and an empty package."""
    tree = tmp_path / "checkout"
    (tree / "src" / "onceward").mkdir(parents=True)
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", ".gitattributes"):
        shutil.copy(ROOT / name, tree)
    (tree / ".git_archival.txt").write_text(ARCHIVAL)  # in a tree out of an archive, this file is filled in
    (tree / "src" / "onceward" / "__init__.py").touch()
    git(tree, "init", "--quiet")
    git(tree, "add", "--all")
    commit(tree)
    commit(tree)
    return tree


def test_the_version_of_the_module_is_that_of_the_installed_package() -> None:
    assert onceward.__version__ == metadata.version("onceward")


@needs_git
@pytest.mark.slow
def test_two_commits_differ_and_a_tag_is_the_version(checkout: Path, tmp_path: Path) -> None:
    first = version(checkout)
    latest = commit(checkout)
    second = version(checkout)
    assert first.startswith("0.1.dev2+g")
    assert second == f"0.1.dev3+g{latest[:9]}"
    git(checkout, "clone", "--quiet", "--depth=1", checkout.as_uri(), str(tmp_path / "shallow"))
    assert version(tmp_path / "shallow").endswith(f"+g{latest[:9]}")
    git(checkout, "tag", "v0.1.0")
    assert version(checkout) == "0.1.0"
    git(checkout, "clone", "--quiet", "--depth=1", "--branch=v0.1.0", checkout.as_uri(), str(tmp_path / "tagged"))
    assert version(tmp_path / "tagged") == "0.1.0"
    latest = commit(checkout)
    assert version(checkout) == f"0.1.1.dev1+g{latest[:9]}"


@needs_git
@pytest.mark.slow
def test_a_tree_without_git_has_the_version_that_came_with_it(checkout: Path, tmp_path: Path) -> None:
    git(checkout, "tag", "v0.1.0")
    latest = commit(checkout)
    git(checkout, "archive", f"--output={tmp_path}/archive.zip", "HEAD")
    shutil.unpack_archive(tmp_path / "archive.zip", tmp_path / "archive")
    assert version(tmp_path / "archive").startswith(f"0.1.1.dev1+g{latest[:7]}")
    shutil.rmtree(checkout / ".git")
    assert version(checkout) == "0.0"
    (checkout / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: onceward\nVersion: 0.3.0\n")
    assert version(checkout) == "0.3.0"


@needs_git
@pytest.mark.slow
def test_a_wheel_knows_its_version_and_leaves_the_checkout_as_it_was(checkout: Path, tmp_path: Path) -> None:
    expected = version(checkout)
    run(checkout, sys.executable, "-B", "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path))
    assert git(checkout, "status", "--porcelain", "--ignored") == ""
    [wheel] = tmp_path.glob(f"onceward-{expected}-*.whl")
    words = "from onceward._version import __version__; from importlib.metadata import version; "
    code = f"{words}assert __version__ == version('onceward'); print(__version__)"
    environment = {**os.environ, "PYTHONPATH": str(wheel)}  # a zip file, before what is installed
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == f"{expected}\n", done.stderr
