"""A standalone cluster, and a job sent to it by the commands of docs/deployment.md, while processes of it are killed.

The workers' own Python has no onceward, no pyspark and no source of this checkout, as on a cluster of somebody else:
the job has what its command sends along. The commands are those of the page, with the address of the tests' master.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import psutil
import pytest

from onceward.testing.pipeline import FAULTS, KafkaTopic, PipelineTest, Table
from onceward.testing.pipeline.driver import paused
from onceward.testing.services.jars import PEER_JARS, ensure_jars

from .pages_kit import BLOCK, ROOT, build_wheel
from .pipeline_kit import SparkPipeline
from .s3_kit import BUCKET, S3Server
from .standalone_kit import SPARK_HOME, StandaloneCluster, is_executor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from onceward.testing.pipeline import Scene

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(900)]
HERE: Final = Path(__file__).parent
PAGE: Final = (ROOT / "docs" / "deployment.md").read_text()
BLOCKS: Final = [block[2] for block in BLOCK.finditer(PAGE) if block[1] == "bash"]
MASTER: Final = "spark://master:7077"
LAST: Final = re.compile(r"^(spark-submit|environment/bin/onceward) ", re.MULTILINE)
"""Takes the place of the shell, so that it gets the signals that are meant for it."""
LOST_SECONDS: Final = 10
"""After so long without a sign of life, Spark gives up on an executor, and the master on a worker."""
SETTINGS: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.network.timeout": f"{LOST_SECONDS}s",
    "spark.network.timeoutInterval": "2s",
    "spark.executor.heartbeatInterval": "2s",
    "spark.sql.shuffle.partitions": "2",
}
SCALED: Final = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.timeout": "1s",
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
    "spark.dynamicAllocation.maxExecutors": "2",
}
clusters: Final[list[StandaloneCluster]] = []
"""The cluster that runs now, for the faults."""


def block(*words: str) -> str:
    """The one command block of the page that has these words."""
    [found] = [text for text in BLOCKS if all(word in text for word in words)]
    return found


def environment() -> dict[str, str]:
    """Variables of a user and of the cluster: nothing of this checkout and of its virtual environment."""
    ours = ("PYTHON", "SPARK_", "PYSPARK_", "ONCEWARD_", "VIRTUAL_ENV", "COV")
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    mine = Path(sys.executable).parent
    rest = [path for path in inherited["PATH"].split(os.pathsep) if Path(path) != mine]
    return {
        **inherited,
        "PATH": os.pathsep.join([str(SPARK_HOME / "bin"), *rest]),
        "PYTHONPATH": "",
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def python_without_onceward(folder: Path) -> Path:
    """A virtual environment with the packages of this one, but for onceward and pyspark."""
    venv.create(folder, symlinks=True)
    [packages] = folder.glob("lib/python*/site-packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not re.match(r"_*(editable_*(impl_)?)?(onceward|pyspark)|.*\.pth$", entry.name):
            (packages / entry.name).symlink_to(entry)
    python = folder / "bin" / "python"
    for missing in ("onceward", "pyspark"):
        assert subprocess.run([python, "-Ic", f"import {missing}"], capture_output=True, check=False).returncode != 0
    return python


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a user, from which jobs are sent: a wheel, jars, the job and its module."""
    folder = tmp_path_factory.mktemp("place")
    build_wheel(folder)
    (folder / "jars").mkdir()
    for jar in ensure_jars(PEER_JARS).glob("*.jar"):
        (folder / "jars" / jar.name).symlink_to(jar)
    shutil.copy(HERE / "deployment_job.py", folder / "job.py")
    shutil.copy(HERE / "billing_sink.py", folder)
    python_without_onceward(folder / "plain")
    return folder


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    options = block("SPARK_DAEMON_JAVA_OPTS").split('"')[1].replace("/var/lib/spark", f"{folder}/recovery")
    options += f" -Dspark.worker.timeout={LOST_SECONDS}"
    with StandaloneCluster(folder, environment(), workers=2, options=options).running() as running:
        clusters.append(running)
        yield running
        clusters.remove(running)


@pytest.fixture(scope="module")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")).running() as server:
        yield server


def executors(scene: Scene) -> list[psutil.Process]:
    """The JVMs of the executors, when there are two."""
    return wait_for(lambda: found if len(found := _executors(scene)) >= 2 else [], "two executors")


def _executors(scene: Scene) -> list[psutil.Process]:
    return [process for process in scene.supervisor.driver.jvms() if is_executor(process)]


def wait_for(found: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.1)
    return value


def kill_executor(scene: Scene) -> None:
    chosen = scene.dice.choice(executors(scene))
    scene.note(f"SIGKILL to executor {chosen.pid}")
    chosen.kill()


def kill_worker(scene: Scene) -> None:
    executors(scene)
    chosen = scene.dice.choice(clusters[-1].workers)
    scene.note(f"SIGKILL to worker {chosen.pid}")
    chosen.kill()
    time.sleep(scene.dice.uniform(1.0, 5.0))
    chosen.start()
    scene.note("the worker is back")


def kill_master(scene: Scene) -> None:
    """Kill an executor, too: its successor can be started only when the master has recovered the application."""
    chosen = scene.dice.choice(executors(scene))
    scene.note(f"SIGKILL to the master and to executor {chosen.pid}")
    clusters[-1].master.kill()
    chosen.kill()
    time.sleep(scene.dice.uniform(1.0, 5.0))
    clusters[-1].master.start()
    wait_for(lambda: len(_executors(scene)) >= 2, "an executor in place of the one that was killed")
    scene.note("the master is back, and has started another executor")


def freeze_executor(scene: Scene) -> None:
    chosen = scene.dice.choice(executors(scene))
    _freeze(scene, [chosen])


def freeze_machine(scene: Scene) -> None:
    """Freeze a worker with its executor and that one's Python: when they thaw, a task may still prepare its rows."""
    chosen = scene.dice.choice(executors(scene))
    [worker] = [worker for worker in clusters[-1].workers if worker.pid == chosen.ppid()]
    _freeze(scene, [psutil.Process(worker.pid), chosen, *chosen.children(recursive=True)])


def _freeze(scene: Scene, processes: Sequence[psutil.Process]) -> None:
    """Freeze them until Spark has given up on the executor, and a while longer."""
    log = scene.supervisor.start.log
    before = log.read_text().count("Lost executor")
    scene.note(f"SIGSTOP to {[process.pid for process in processes]}")
    with paused(processes):
        wait_for(lambda: log.read_text().count("Lost executor") > before, "the loss of the executor", seconds=90)
        time.sleep(scene.dice.uniform(1.0, 4.0))
    scene.note("SIGCONT")


def kill_supervised(program: str, scene: Scene) -> None:
    """Kill the JVM or the Python of the driver, and see that another is started by `onceward run`."""

    def running() -> list[psutil.Process]:
        found = []
        for process in scene.supervisor.driver.descendants():
            with suppress(psutil.Error):
                if process.name().startswith(program) and "job.py" in " ".join(process.cmdline()[1:]):
                    found.append(process)
        return [process for process in found if "onceward" not in " ".join(process.cmdline())]

    chosen = wait_for(running, f"the driver's {program}")[-1]
    scene.note(f"SIGKILL to the driver's {program} {chosen.pid}")
    chosen.kill()
    wait_for(lambda: [one for one in running() if one.pid != chosen.pid], "another driver")
    assert scene.supervisor.exit_codes == [], "onceward run has ended"
    scene.note("there is another driver")


def watch_executors(scene: Scene) -> None:
    """See executors leave between epochs, and others come."""
    seen = set[int]()
    while time.monotonic() < scene.until:
        seen |= {process.pid for process in _executors(scene)}
        time.sleep(0.1)
    assert len(seen) > 2, "no executor left and came"
    scene.note(f"there were {len(seen)} executors, two at a time")


class Sent(PipelineTest):
    """Kafka → a job on the cluster → Kafka and PostgreSQL.

    Attributes:
        sent_by: Words of the block of the page that sends the job.
        settings: Further ones of Spark.
        variables: Further ones of the job.
    """

    command = ("bash", "-euc", 'cd "$JOB_PLACE" && . "$JOB_SCRIPT"')
    services = "local"
    inputs = KafkaTopic("numbers", partitions=3)
    outputs = (KafkaTopic("words", partitions=3), Table("words", "id bigint, word text"))
    row_count = 1_000
    feed_seconds = 8.0
    timeout = 180.0
    row = SparkPipeline.row
    expected = SparkPipeline.expected
    sent_by: ClassVar[Sequence[str]]
    settings: ClassVar[Mapping[str, str]] = {}
    variables: ClassVar[Mapping[str, str]] = {}

    @pytest.fixture(autouse=True)
    def _script(
        self,
        place: Path,
        cluster: StandaloneCluster,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        request: pytest.FixtureRequest,
    ) -> None:
        self.prepare(place)
        commands = block(*self.sent_by)
        for shown, address in {MASTER: cluster.url, **self.addresses(request)}.items():
            commands = commands.replace(shown, address)
        script, defaults = tmp_path / "send", tmp_path / "conf" / "spark-defaults.conf"
        script.write_text(
            re.sub(r"^(spark-submit|environment/bin/onceward) ", r"exec \1 ", commands, flags=re.MULTILINE)
        )
        defaults.parent.mkdir()
        defaults.write_text("".join(f"{name} {value}\n" for name, value in {**SETTINGS, **self.settings}.items()))
        job = {"JOB_PLACE": str(place), "JOB_SCRIPT": str(script), "SPARK_CONF_DIR": str(defaults.parent)}
        monkeypatch.setattr(type(self), "environment", {**environment(), **job, **self.variables})

    def prepare(self, place: Path) -> None:
        """Make what is sent, once for the module."""

    def addresses(self, request: pytest.FixtureRequest) -> dict[str, str]:  # noqa: ARG002 - for subclasses
        """Return addresses of the page, and those of the tests, beside the master's."""
        return {}


class TestPyFiles(Sent):
    """onceward and a module by `--py-files`, Spark's connector by `--jars`; what they need is on the machines."""

    sent_by = ("--py-files",)
    faults: ClassVar = {
        "kill-driver": FAULTS["kill-driver"],
        "kill-executor": kill_executor,
        "kill-worker": kill_worker,
        "kill-master": kill_master,
        "freeze-executor": freeze_executor,
        "freeze-machine": freeze_machine,
    }
    variables: ClassVar = {"JOB_SINK": "billing_sink:BillingSink", "JOB_PAUSE": "0.3"}

    def prepare(self, place: Path) -> None:
        python = str(place / "plain" / "bin" / "python")
        type(self).variables = {**self.variables, "PYSPARK_PYTHON": python}


class TestObjectStore(Sent):
    """Checkpoint and decision log are in an object store; the machines have onceward installed."""

    sent_by = ("s3a/*.jar",)
    faults: ClassVar = {"kill-driver": FAULTS["kill-driver"]}
    variables: ClassVar = {"JOB_ROOT": f"s3a://{BUCKET}", "JOB_STORE": ""}

    def addresses(self, request: pytest.FixtureRequest) -> dict[str, str]:
        return {"http://s3.example.org:8333": request.getfixturevalue("object_store").options["endpoint_url"]}

    def prepare(self, place: Path) -> None:
        if not (place / "installed").exists():
            python = python_without_onceward(place / "installed")
            pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps"]
            subprocess.run([*pip, *place.glob("*.whl")], check=True)
            (place / "s3a").symlink_to(ensure_jars(HERE / "s3a-3.5.0.lock"))
        type(self).variables = {**self.variables, "PYSPARK_PYTHON": str(place / "installed" / "bin" / "python")}


class TestObjectStoreOfTheLogAlone(TestObjectStore):
    """The decision log is found by its own address."""

    variables: ClassVar = {"JOB_ROOT": f"s3a://{BUCKET}/checkpoints", "JOB_STORE": f"s3://{BUCKET}/decisions"}


class TestDynamicAllocation(TestPyFiles):
    """Executors come when there are rows, and leave between epochs."""

    settings = SCALED
    faults: ClassVar = {"executors-that-leave": watch_executors, "kill-driver": FAULTS["kill-driver"]}
    feed_seconds = 60.0


class TestArchive(Sent):
    """An environment that is packed and sent: the machines have Python, and nothing else."""

    sent_by = ("--archives", "\nspark-submit --master spark")
    faults: ClassVar = {"kill-driver": FAULTS["kill-driver"], "kill-executor": kill_executor}

    def prepare(self, place: Path) -> None:
        if not (place / "environment.tar.gz").exists():
            subprocess.run(["bash", "-euc", block("venv-pack")], cwd=place, env=environment(), check=True)


class TestArchiveAndKafkaSource(TestArchive):
    """The Python processes that read Kafka for the driver are the archive's, too."""

    variables: ClassVar = {"JOB_SOURCE": "onceward-kafka"}


class TestOncewardRun(TestArchive):
    """`onceward run` starts the driver again, whichever of its processes is killed."""

    sent_by = ("onceward run -- spark-submit",)
    faults: ClassVar = {
        "kill-jvm-of-driver": partial(kill_supervised, "java"),
        "kill-python-of-driver": partial(kill_supervised, "python"),
    }
