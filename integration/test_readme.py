"""README.md and the pages engine, how-to/custom-sink, testing and getting-started as a new user follows them.

README, the engine's page, the skeleton of a sink and the page on testing: the wheel in an empty environment, with what
they install and nothing else. The getting-started page: the project's own environment, so its installation is left out.

Every `bash` block runs as it stands, in order, in one shell session; the `python` blocks are the files that it runs.
Only two things are ours: versions are those of requirements.lock, and `.` is the wheel of this checkout. No `python3`
on PATH is that of the environment, as for somebody who calls its `python` without activating it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyspark
import pytest

from .kafka_kit import read_all
from .pages_kit import BLOCK, ROOT, build_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator

README = (ROOT / "README.md").read_text()
GETTING_STARTED = (ROOT / "docs" / "getting-started.md").read_text()
ENGINE = (ROOT / "docs" / "engine.md").read_text()
CUSTOM_SINK = (ROOT / "docs" / "how-to" / "custom-sink.md").read_text()
TESTING = (ROOT / "docs" / "testing.md").read_text()
pytestmark = [pytest.mark.pages, pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres, pytest.mark.timeout(1500)]


class Shell:
    """One shell session of a new user, in a folder that holds the page's programs.

    Args:
        folder: The folder.
        home: The environment.
    """

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder = folder
        self._variables = folder / "variables"
        self._bin = folder / "bin"
        self._bin.mkdir()
        pip = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python")]
        programs = {name: [home / "bin" / name] for name in ("python", "onceward", "pytest")}
        for name, command in {"pip": pip, **programs}.items():
            program = self._bin / name
            program.write_text(f'#!/bin/sh\nexec {" ".join(map(str, command))} "$@"\n')
            program.chmod(0o755)
        self._environment = self._new_environment()
        if home == Path(sys.executable).parent.parent:
            self._environment["PYTHONPATH"] = str(ROOT / "src")
            self.start_quickly()

    def run(self, commands: str) -> str:
        """Run a block; what it exports is there for the next."""
        script = f"test ! -e {self._variables} || . {self._variables}\n{commands}\nexport -p > {self._variables}"
        done = subprocess.run(
            ["bash", "-eu", "-c", script],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{commands}\n{done.stdout[-4000:]}"
        return done.stdout

    def start_quickly(self) -> None:
        """Take Spark's jars from the project's environment: the archive of their classes is of that place alone."""
        self._environment["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
        self._environment["JDK_JAVA_OPTIONS"] = os.environ["JDK_JAVA_OPTIONS"]

    def variable(self, name: str) -> str:
        return self.run(f'printf %s "${name}"')

    def _new_environment(self) -> dict[str, str]:
        ours = ("PYTHON", "SPARK_", "PYSPARK_", "ONCEWARD_", "VIRTUAL_ENV")
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
        mine = Path(sys.executable).parent
        rest = [path for path in inherited["PATH"].split(os.pathsep) if Path(path) != mine]
        constraints = self.folder / "constraints.txt"
        lines = (ROOT / "requirements.lock").read_text().splitlines()
        constraints.write_text("\n".join(line.removesuffix(" \\") for line in lines if re.match(r"[a-z].*==", line)))
        kept = {name: os.environ[name] for name in ("ONCEWARD_CACHE",) if name in os.environ}
        return {
            **inherited,
            **kept,
            "PATH": os.pathsep.join([str(self._bin), *rest]),
            "PIP_CONSTRAINT": str(constraints),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_NO_COMPILE": "1",  # most modules are never imported
            "SPARK_LOCAL_IP": "127.0.0.1",
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # a short run pays for no optimizing
        }


class Installed(NamedTuple):
    """An environment with what README installs first, and nothing else; from which wheel, and what was printed."""

    home: Path
    wheel: Path
    output: str


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("user")
    home, wheel = folder / "environment", build_wheel(folder / "wheel")
    venv.create(home, with_pip=False)
    return Installed(home, wheel, Shell(folder, home).run(bash(README, "'.[", wheel)[0]))


def bash(page: str, package: str, wheel: Path) -> list[str]:
    """The bash blocks of a page, with the wheel instead of the package; without those for a checkout."""
    blocks = [block[2] for block in BLOCK.finditer(page) if block[1] == "bash" and not block[2].startswith("make ")]
    return [block.replace(package, f"'{wheel}[") for block in blocks]


@pytest.fixture
def shell(tmp_path: Path, environment: Installed) -> Iterator[Shell]:
    yield from session(Shell(tmp_path, environment.home))


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Shell]:
    (tmp_path / "examples").mkdir()
    for file in re.findall(r"\]\(\.\./(examples/\w+\.py)\)", GETTING_STARTED):
        (tmp_path / file).write_text((ROOT / file).read_text())
    yield from session(Shell(tmp_path, Path(sys.executable).parent.parent))


def session(shell: Shell) -> Iterator[Shell]:
    yield shell
    if (shell.folder / ".run").exists():
        shell.run("onceward dev down --delete")


def programs(page: str) -> dict[str, str]:
    """The programs that a page runs: its python blocks, each with the file that is linked last before it, and files."""
    linked = re.compile(r"\]\((?:\.\./)?(examples/\w+\.py)\)")
    blocks = [block for block in BLOCK.finditer(page) if block[1] == "python"]
    shown = {linked.findall(page[: block.start()])[-1]: block[2] for block in blocks}
    commands = [block[2] for block in BLOCK.finditer(page) if block[1] == "bash"]
    run = {file for command in commands for file in re.findall(r"examples/\S+", command)}
    assert run <= set(linked.findall(page))
    return {**{file: (ROOT / file).read_text() for file in run}, **shown}


def test_a_new_user_follows_it_from_top_to_bottom(shell: Shell, environment: Installed) -> None:
    (shell.folder / "examples").mkdir()
    for file, text in {**programs(README), **programs(ENGINE)}.items():
        (shell.folder / file).write_text(text)
    install = environment.output
    services, quickstart = (shell.run(block) for block in bash(README, "'.[", environment.wheel)[1:])
    sink = shell.run(bash(CUSTOM_SINK, "'onceward[", environment.wheel)[0])
    [engine] = (shell.run(block) for block in bash(ENGINE, "'.[", environment.wheel))
    assert "Successfully installed" in install
    assert "failed" not in install.partition("ok       java")[2]
    assert "bootstrap_servers" in services
    assert "epoch 0 of pipeline paid completed: topic 999 rows, table 999 rows in 4 transactions" in quickstart
    assert quickstart.splitlines()[-1] == "(999, Decimal('499500'))"
    assert " passed" in sink
    assert "Traceback" not in engine
    assert "completed" in engine
    assert "Requirement already satisfied" in shell.run("pip install --no-index 'onceward[kafka]'")
    shell.start_quickly()
    shell.run("python examples/make_orders.py; python examples/quickstart.py")
    servers = shell.variable("KAFKA_BOOTSTRAP_SERVERS")
    assert len(read_all(servers, "paid")) == 2 * 999
    assert len(read_all(servers, "totals")) == 1000
    addresses = '--at kafka="$KAFKA_BOOTSTRAP_SERVERS" --at postgres="$DATABASE_URL"'
    doctor = shell.run(f"onceward doctor {addresses} --store checkpoints/paid --pipeline paid --place kafka:paid")
    assert "pipeline paid, newest decided epoch 1" in doctor
    assert "no onceward" not in doctor


def test_a_pipeline_survives_as_the_getting_started_page_says(installed: Shell) -> None:
    blocks = [block[2] for block in BLOCK.finditer(GETTING_STARTED) if block[1] == "bash"]
    install, services, crash, restart, kill, clean_up = blocks
    assert install.startswith("pip install '.[kafka,postgres,spark,dev-services]'")
    assert "topic payments: created, partitions: 3\n" in installed.run(services)
    crashed = installed.run(crash)
    assert "killed\n" in crashed
    assert "decided; prepared in PostgreSQL" in crashed, crashed
    restarted = installed.run(restart)
    assert "finishing epoch 0, decided by an earlier writer\n" in restarted
    assert re.search(r"receipts starts after epoch 0, .*: 4 decided transactions committed, 0 others", restarted)
    assert not re.search(r"^20.* WARNING ", restarted, re.MULTILINE)
    assert restarted.splitlines()[-1] == "(999, Decimal('499500'))"
    assert re.search(r"topic (\d+) rows, table \1 rows in ", installed.run(kill))
    assert "PostgreSQL stopped, deleted\n" in installed.run(clean_up)


@pytest.mark.parametrize("case", ["clean", pytest.param("kill-jvm", marks=pytest.mark.nightly)])
def test_a_pipeline_is_tested_as_the_page_on_testing_says(shell: Shell, environment: Installed, case: str) -> None:
    shell.start_quickly()
    driver, test = [block[2] for block in BLOCK.finditer(TESTING) if block[1] == "python"][:2]
    (shell.folder / "driver.py").write_text(driver)
    (shell.folder / "test_orders.py").write_text(test)
    [with_docker, without_docker, run] = bash(TESTING, "'onceward[", environment.wheel)[0].splitlines()
    assert "# with Docker" in with_docker
    shell.run(without_docker)
    shell.run(f"export DOCKER_HOST=unix:///nowhere PYTEST_ADDOPTS='-k {case}'")  # containers: integration/containers
    assert "1 passed" in shell.run(run)
