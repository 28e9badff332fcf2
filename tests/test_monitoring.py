"""What pipelines tell of themselves becomes log lines, metrics and lineage, and no exporter's error fails an epoch."""

from __future__ import annotations

import json
import logging
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import prometheus_client
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from onceward import CommitStatus, FileSink, HttpSink, KafkaSink, RedisSink, SqlAlchemySink, lineage, metrics
from onceward.connectors.monitoring import metrics as observer
from onceward.connectors.monitoring import start_if_asked
from onceward.connectors.monitoring.table import TABLE
from onceward.core import CheckpointConfig, ProcessFunction
from onceward.core.checkpoint import Coordinator
from onceward.core.checkpoint.subtask import DirectlyWritten
from onceward.core.contract import events
from onceward.core.contract.connector import Connector
from onceward.core.contract.events import CheckpointEnded, EpochCompleted, Event, QueryProgressed, Took, observe, tell
from onceward.core.contract.transaction import Written
from onceward.core.errors import CommitPendingError, ConfigurationError
from onceward.core.log import EpochInput, MemoryStore
from onceward.sinks import DirectSink
from onceward.sources import SequenceSource

from .coordinator_kit import LATER, Bench, about
from .core_fakes import acknowledgement
from .engine_kit import Slowly, numbers, pipeline, reach
from .sink_kit import Target, TargetSink

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from onceward.core.contract.transaction import Committable, WriteContext
    from onceward.sinks import Sink

ROOT = Path(__file__).parent.parent
BOARD = ROOT / "docs" / "monitoring" / "grafana-dashboard.json"
RULES = ROOT / "docs" / "monitoring" / "prometheus-rules.yml"


@pytest.fixture(autouse=True)
def own_observers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that a test adds are gone after it."""
    monkeypatch.setattr(events, "_observers", list(events._observers))
    monkeypatch.setattr(events, "_complained", [])


@pytest.fixture
def told() -> list[Event]:
    found: list[Event] = []
    observe(found.append)
    return found


class Registry:
    """A registry of prometheus-client, and what it says."""

    def __init__(self) -> None:
        self.client = prometheus_client.CollectorRegistry()
        metrics.prometheus(self.client)

    def value(self, name: str, **labels: str) -> float | None:
        return self.client.get_sample_value(name, {"pipeline": "p", **labels})


@pytest.fixture
def registry() -> Iterator[Registry]:
    made = Registry()
    yield made
    metrics._made.pop(id(made.client))


class Ringing(ProcessFunction):
    """Sets a timer for each key, for a time that does not come."""

    def process(self, record: dict[str, Any], context: Any) -> Any:
        context.timer_at(1e12)
        return [record]


class Mail(DirectSink[None]):
    """Sends each row, and again after a failure."""

    def open(self, context: Any) -> None: ...

    def write(self, writer: None, batch: Any) -> None: ...


class ExpiringSink(TargetSink):
    def expires_at(self, committable: Committable) -> float | None:
        return 1000.0 + committable.subtask


def kinds(told: list[Event]) -> list[str]:
    return [type(event).__name__ for event in told]


class TestEvents:
    def test_an_epoch_tells_that_it_began_was_committed_and_completed(self, told: list[Event]) -> None:
        bench = Bench()
        bench.run(bench.opened(), 0)
        assert kinds(told) == ["Started", "EpochBegan", "Committed", "EpochCompleted"]

    def test_a_commit_that_waits_is_told_each_time(self, told: list[Event]) -> None:
        bench = Bench()
        bench.sink.answers = [LATER, LATER]
        bench.run(bench.opened(), 0)
        assert kinds(told)[2:] == ["CommitWaits", "CommitWaits", "Committed", "EpochCompleted"]

    def test_an_epoch_that_is_given_up_is_told_after_its_transactions_are_aborted(self, told: list[Event]) -> None:
        bench = Bench()
        coordinator = bench.opened()
        coordinator.admit(0, about(0))
        coordinator.give_up()
        assert kinds(told) == ["Started", "EpochBegan", "EpochAbandoned"]

    def test_what_an_observer_raises_is_logged_once_and_fails_no_epoch(self, caplog: pytest.LogCaptureFixture) -> None:
        def broken(_: Event) -> None:
            raise OSError("the exporter is away")

        observe(broken)
        bench = Bench()
        coordinator = bench.opened()
        for epoch in range(3):
            bench.run(coordinator, epoch)
        assert coordinator.view.completed == 2
        [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert "OSError: the exporter is away" in record.getMessage()
        assert "broken" in record.getMessage()

    def test_an_epoch_that_a_start_finishes_is_told_without_durations(self, told: list[Event]) -> None:
        bench = Bench()
        coordinator = bench.opened()
        one = bench.committable(coordinator, 0)
        coordinator.writer.decide(0, [one], sinks=["a"], epoch_input=about(0))
        bench.opened()
        assert kinds(told) == ["Started", "Committed", "EpochCompleted", "Started"]
        [event] = [event for event in told if isinstance(event, EpochCompleted)]
        assert (event.epoch, event.rows(), event.input, event.took) == (0, {"a": 1}, about(0), None)

    def test_a_sink_that_cannot_say_when_a_transaction_expires_fails_no_epoch(self, told: list[Event]) -> None:
        class Broken(TargetSink):
            def expires_at(self, committable: Committable) -> float | None:
                raise OSError(f"no broker to ask about {committable.transaction}")

        bench = Bench(Broken(name="a"))
        bench.sink.answers = [LATER]
        bench.run(bench.opened(), 0)
        assert kinds(told)[-1] == "EpochCompleted"


def completed(**changes: Any) -> EpochCompleted:
    values: dict[str, Any] = {
        "pipeline": "p",
        "log": "0badcafe",
        "epoch": 7,
        "input": EpochInput(),
        "committables": [],
        "written": [],
        "sinks": {},
        "took": Took(1.5, 0.25, 0.5),
        **changes,
    }
    return EpochCompleted(**values)


class TestPrometheus:
    def test_a_sink_that_is_weaker_than_exactly_once_is_told_before_it_writes(self, registry: Registry) -> None:
        Coordinator("p", MemoryStore(), [TargetSink(name="a"), DirectlyWritten(Mail("mail"))]).open()
        assert registry.value("onceward_sink_guarantee", sink="a", guarantee="exactly-once") == 1
        assert registry.value("onceward_sink_guarantee", sink="mail", guarantee="at-least-once") == 1
        assert registry.value("onceward_sink_guarantee", sink="mail", guarantee="exactly-once") is None

    def test_epochs_and_their_rows_and_seconds_are_counted(self, registry: Registry) -> None:
        bench = Bench()
        coordinator = bench.opened()
        for epoch in range(3):
            coordinator.admit(epoch, about(epoch))
            one = bench.committable(coordinator, epoch)
            written = (Written("a", 1, write=0.5, prepare=0.25),)
            coordinator.commit(epoch, [acknowledgement(one, epoch=epoch, written=written)], about(epoch))
        assert registry.value("onceward_epochs_completed_total") == 3
        assert registry.value("onceward_epochs_failed_total") == 0
        assert registry.value("onceward_epoch_last") == 2
        assert registry.value("onceward_rows_total", sink="a") == 3
        assert registry.value("onceward_transactions_total", sink="a") == 3
        assert registry.value("onceward_write_duration_seconds_sum", sink="a") == 1.5
        assert registry.value("onceward_prepare_duration_seconds_sum", sink="a") == 0.75
        assert registry.value("onceward_commit_duration_seconds_count", sink="a") == 3
        assert registry.value("onceward_decide_duration_seconds_count") == 3
        assert registry.value("onceward_in_doubt_since_timestamp_seconds") == 0

    def test_a_decided_transaction_that_waits_says_when_it_expires_until_it_is_committed(
        self, registry: Registry
    ) -> None:
        bench = Bench(ExpiringSink(name="a"))
        coordinator = bench.opened()
        bench.sink.answers = [LATER] * 4
        with pytest.raises(CommitPendingError):
            bench.run(coordinator, 0)
        assert registry.value("onceward_decided_expiry_timestamp_seconds", sink="a") == 1000
        assert registry.value("onceward_commit_retries_total", sink="a") == 4
        assert registry.value("onceward_in_doubt_since_timestamp_seconds") != 0
        bench.opened()
        assert registry.value("onceward_decided_expiry_timestamp_seconds", sink="a") == 0
        assert registry.value("onceward_in_doubt_since_timestamp_seconds") == 0

    def test_a_run_that_has_completed_no_epoch_yet_says_when_an_earlier_one_did(self) -> None:
        bench = Bench(now=lambda: "2026-11-23T12:00:00.000+00:00")
        bench.run(bench.opened(), 0)
        process = Registry()  # a new one: its driver dies at its first epoch, again and again
        bench.opened()
        assert process.value("onceward_epoch_last_completed_timestamp_seconds") == 1795435200
        assert process.value("onceward_epoch_last") == 0
        metrics._made.pop(id(process.client))

    def test_a_new_pipeline_does_not_say_that_an_epoch_was_completed(self, registry: Registry) -> None:
        Bench().opened()
        assert registry.value("onceward_epoch_last_completed_timestamp_seconds") is None
        assert registry.value("onceward_epoch_last") is None

    def test_a_counter_is_there_before_it_first_increases(self, registry: Registry) -> None:
        bench = Bench()
        coordinator = bench.opened()
        for event in ("completed", "replayed", "failed"):
            assert registry.value(f"onceward_epochs_{event}_total") == 0
        bench.run(coordinator, 0)
        assert registry.value("onceward_commit_retries_total", sink="a") == 0

    def test_a_sink_that_has_committed_does_not_expire_with_one_that_waits(self, registry: Registry) -> None:
        bench, other = Bench(ExpiringSink(name="a")), ExpiringSink(name="b")
        coordinator = bench.opened(other)
        coordinator.admit(0, about(0))
        found = [bench.committable(coordinator, 0), named(coordinator, "b")]
        bench.sink.answers, other.answers = [CommitStatus.RETRY_LATER], [CommitStatus.RETRY_LATER] * 4
        with pytest.raises(CommitPendingError):
            coordinator.commit(0, [acknowledgement(*found, sinks=("a", "b"))], about(0))
        assert registry.value("onceward_decided_expiry_timestamp_seconds", sink="a") == 0
        assert registry.value("onceward_decided_expiry_timestamp_seconds", sink="b") == 1000

    def test_a_fast_sink_s_commit_is_not_as_long_as_a_slow_one_s(self, registry: Registry) -> None:
        import time

        class Slow(TargetSink):
            def commit_many(self, committables: Any) -> Any:
                time.sleep(0.2)
                return super().commit_many(committables)

        bench, slow = Bench(), Slow(name="b")
        coordinator = bench.opened(slow)
        coordinator.admit(0, about(0))
        found = [bench.committable(coordinator, 0), named(coordinator, "b")]
        coordinator.commit(0, [acknowledgement(*found, sinks=("a", "b"))], about(0))
        fast, slow_one = (registry.value("onceward_commit_duration_seconds_sum", sink=sink) or 0 for sink in ("a", "b"))
        assert slow_one - fast > 0.1

    def test_the_engine_is_in_doubt_before_its_first_checkpoint_is_completed(self, registry: Registry) -> None:
        graph, source = pipeline(checkpointing=CheckpointConfig()), Slowly(numbers(20), batch_rows=10)
        graph.source(source).sink(TargetSink(Target()))
        job = graph.start()
        reach(source, job, 1)
        assert time.time() - (registry.value("onceward_in_doubt_since_timestamp_seconds") or 0) < 60
        graph.stop()

    def test_checkpoints_of_the_engine_have_duration_size_and_alignment(self, registry: Registry) -> None:
        from onceward.core.log.note_kinds import CheckpointRecord, TaskRecord

        tasks = [TaskRecord(alignment=0.5, state=100), TaskRecord(alignment=2.0, state=20)]
        made = CheckpointRecord(checkpoint=4, kind="checkpoint", status="completed", duration=3.0, tasks=tasks)
        tell(CheckpointEnded("p", made, bad=False))
        tell(CheckpointEnded("p", CheckpointRecord(checkpoint=5, kind="checkpoint", status="failed"), bad=True))
        assert registry.value("onceward_checkpoints_total", status="completed") == 1
        assert registry.value("onceward_checkpoints_total", status="failed") == 1
        assert registry.value("onceward_checkpoint_duration_seconds_sum") == 3
        assert registry.value("onceward_checkpoint_alignment_seconds_sum") == 2
        assert registry.value("onceward_checkpoint_size_bytes") == 120

    def test_operators_of_the_engine_have_rows_seconds_timers_and_a_lag(self, registry: Registry) -> None:
        graph, source = pipeline(checkpointing=CheckpointConfig()), Slowly(numbers(40), batch_rows=10)
        source.let(4)
        rows = graph.source(source, uid="rows", parallelism=1).flat_map(lambda row: [row, row], uid="twice")
        rows.key_by("k").process(Ringing(), uid="bell", parallelism=2).sink(TargetSink(Target()))
        graph.run()

        def value(name: str, operator: str, subtask: int = 0) -> Any:
            return registry.value(f"onceward_{name}", operator=operator, subtask=str(subtask))

        assert value("operator_rows_in_total", "rows") == 0
        assert value("operator_rows_out_total", "rows") == value("operator_rows_in_total", "twice") == 40
        assert value("operator_rows_out_total", "twice") == 80
        assert sum(value("operator_rows_in_total", "bell", subtask) for subtask in (0, 1)) == 80
        assert value("operator_rows_in_total", "target") == 80
        assert value("operator_rows_out_total", "target") == 0
        assert sum(value("operator_timers", "bell", subtask) for subtask in (0, 1)) == 3
        assert value("operator_busy_seconds_total", "twice") > 0
        assert value("operator_blocked_seconds_total", "twice") >= 0
        assert value("source_lag", "rows") == 0
        assert value("source_lag", "twice") is value("operator_timers", "twice") is None

    def test_records_behind_the_last_stable_offset_are_asked_for_beside_the_epoch(
        self, registry: Registry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import threading

        asked = threading.Event()

        class Topics(Connector):
            @classmethod
            def readers_lag(cls, sink: Sink) -> int | None:  # noqa: ARG003
                asked.set()
                return 12

        monkeypatch.setattr(observer, "connector_of", lambda _: Topics)
        bench = Bench(TargetSink(name="a"))
        coordinator = bench.opened()
        bench.run(coordinator, 0)
        assert asked.wait(10)
        for thread in threading.enumerate():
            if thread.name == "onceward-lag":
                thread.join(10)
        assert registry.value("onceward_last_stable_offset_lag", sink="a") == 12
        asked.clear()
        bench.run(coordinator, 1)
        assert not asked.is_set()

    def test_the_same_registry_is_counted_into_once(self, registry: Registry) -> None:
        metrics.prometheus(registry.client)
        bench = Bench()
        bench.run(bench.opened(), 0)
        assert registry.value("onceward_epochs_completed_total") == 1

    def test_a_port_that_is_taken_is_an_error_that_names_it(self) -> None:
        code = (
            "from onceward import metrics; port = metrics.serve(0, '127.0.0.1')\n"
            "import urllib.request; url = f'http://127.0.0.1:{port}/metrics'\n"
            "assert b'onceward_epochs_completed' in urllib.request.urlopen(url).read()\n"
            "from onceward.core.errors import ConfigurationError\n"
            "try: metrics.serve(port, '127.0.0.1')\n"
            "except ConfigurationError as error: print(f':{port}' in str(error))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "True"

    def test_an_extra_that_is_missing_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in ("prometheus_client", "opentelemetry", "openlineage.client"):
            monkeypatch.setitem(sys.modules, module, None)
        for call in (metrics.prometheus, metrics.opentelemetry, lineage.openlineage):
            with pytest.raises(ConfigurationError, match=rf"pip install 'onceward\[{call.__name__}\]'"):
                call()


def named(coordinator: Any, sink: str) -> Committable:
    context = coordinator.context(sink, 0, subtask=0)
    return context.committable(kind="fake", transaction=str(context.transaction_name()), rows=1)


FORMAT_PROCESS = """
import logging
logging.basicConfig()
from onceward.connectors.monitoring import start_if_asked
from onceward.core.contract.events import EpochReplayed, tell
start_if_asked()
tell(EpochReplayed("p", 3))
"""


@pytest.mark.parametrize(("asked", "complaint"), [("prometheus", ""), ("statsd", "ONCEWARD_METRICS=statsd is unknown")])
def test_a_process_of_a_format_records_as_the_environment_asks(asked: str, complaint: str, tmp_path: Path) -> None:
    import os

    environment = {**os.environ, "ONCEWARD_METRICS": asked, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    read = (
        "import urllib.request; from onceward import metrics\n"
        "url = f'http://127.0.0.1:{metrics.serve(0, \"127.0.0.1\")}/metrics'\n"
        "print(urllib.request.urlopen(url).read().decode())"
    )
    told = run(FORMAT_PROCESS, environment)
    shown = run(read, environment)
    assert complaint in told.stderr
    assert ('onceward_epochs_replayed_total{pipeline="p"} 1.0' in shown.stdout) is (not complaint)


def test_what_an_exporter_stumbles_over_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ONCEWARD_METRICS", "opentelemetry")
    monkeypatch.setattr(metrics, "entry_points", lambda **_: {}["its own"])
    start_if_asked()
    assert "though ONCEWARD_METRICS=opentelemetry: KeyError('its own')" in caplog.text


def test_metrics_of_a_format_that_nobody_could_read_are_a_warning() -> None:
    import os

    environment = {**os.environ, "ONCEWARD_METRICS": "prometheus"}
    environment.pop("PROMETHEUS_MULTIPROC_DIR", None)
    assert "Set PROMETHEUS_MULTIPROC_DIR to an empty folder" in run(FORMAT_PROCESS, environment).stderr


def run(code: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)


class TestOpenTelemetry:
    def test_each_metric_is_recorded_under_its_own_name_and_unit(self) -> None:
        reader = InMemoryMetricReader()
        provider = MeterProvider(metric_readers=[reader])
        metrics.opentelemetry(provider)
        bench = Bench()
        bench.run(bench.opened(), 0)
        data: Any = reader.get_metrics_data()
        [found] = [scope.metrics for resource in data.resource_metrics for scope in resource.scope_metrics]
        by_name = {metric.name: metric for metric in found}
        assert by_name["onceward.commit.duration"].unit == "s"
        [rows] = by_name["onceward.rows"].data.data_points
        assert (rows.value, dict(rows.attributes)) == (1, {"pipeline": "p", "sink": "a"})
        metrics._made.pop(id(provider))
        provider.shutdown()

    def test_without_a_provider_the_sdk_is_set_up_as_its_variables_say(self) -> None:
        import os

        code = (
            "from onceward import metrics\nfrom onceward.core.contract.events import EpochReplayed, tell\n"
            "metrics.opentelemetry()\ntell(EpochReplayed('p', 3))"
        )
        done = run(code, {**os.environ, "OTEL_METRICS_EXPORTER": "console"})
        assert '"name": "onceward.epochs.replayed"' in done.stdout
        code = "from onceward import metrics; metrics.opentelemetry()"
        with pytest.raises(subprocess.CalledProcessError) as failed:
            run(code, {**os.environ, "OTEL_METRICS_EXPORTER": "nothing"})
        assert "OTEL_METRICS_EXPORTER=nothing: no such exporter is installed" in failed.value.stderr


@dataclass
class Transport:
    """What an OpenLineageClient would send."""

    emitted: list[dict[str, Any]]

    def emit(self, event: Any) -> None:
        from openlineage.client.serde import Serde

        self.emitted.append(json.loads(Serde.to_json(event)))


@pytest.fixture
def transport() -> Iterator[Transport]:
    made = Transport([])
    lineage.openlineage(made, namespace="shop")
    yield made
    lineage._lineages.pop(id(made))


class TestLineage:
    def test_an_epoch_is_a_run_with_inputs_by_offsets_and_outputs_by_rows(self, transport: Transport) -> None:
        sink: Any = KafkaSink(name="a", bootstrap_servers="one:9092,two:9092", topic="totals")
        ends = ['{"orders":{"0":9,"1":7}}', '{"logOffset":3}']
        offsets = EpochInput(query="q", start=['{"orders":{"0":5,"1":7}}'], end=ends)
        one = Bench()
        tell(completed(input=offsets, committables=[one.committable(one.opened(), 0)], sinks={"a": sink}))
        [event] = transport.emitted
        assert (event["eventType"], event["job"]["namespace"], event["job"]["name"]) == ("COMPLETE", "shop", "p")
        orders, other = event["inputs"]
        assert (orders["namespace"], orders["name"], other["name"]) == ("shop", "orders", "p.source-1")
        first, second = orders["inputFacets"]["subset"]["inputCondition"]["partitions"]
        assert first["dimensions"] == {"partition": "0", "startOffset": 5, "endOffset": 9}
        assert second["dimensions"] == {"partition": "1", "startOffset": 7, "endOffset": 7}
        [output] = event["outputs"]
        assert (output["namespace"], output["name"]) == ("kafka://one:9092", "totals")
        assert output["outputFacets"]["outputStatistics"]["rowCount"] == 1

    def test_the_same_epoch_is_the_same_run_wherever_it_is_told(self, transport: Transport) -> None:
        for took in (Took(1.0, 0.1, 0.1), None):
            tell(completed(written=[Written("a", 1)], took=took))
        tell(completed(written=[Written("a", 1)], epoch=8))
        one, again, other = (event["run"]["runId"] for event in transport.emitted)
        assert one == again != other

    def test_a_checkpoint_that_wrote_nothing_is_no_run(self, transport: Transport) -> None:
        tell(completed(checkpoint=True))
        assert transport.emitted == []

    @pytest.mark.parametrize(("asked", "told"), [("openlineage", 1), ("", 0), ("marquez", 0)])
    def test_a_process_of_a_format_emits_as_the_environment_asks(self, asked: str, told: int, tmp_path: Path) -> None:
        import os

        code = (
            "import logging; logging.basicConfig()\n"
            "from onceward.connectors.monitoring import start_if_asked\n"
            "from tests.test_monitoring import completed, tell, Written\n"
            "for _ in range(2): start_if_asked()\n"
            "tell(completed(written=[Written('a', 1)]))"
        )
        transport = {"TYPE": "file", "LOG_FILE_PATH": str(tmp_path / "events"), "APPEND": "true"}
        variables = {f"OPENLINEAGE__TRANSPORT__{name}": value for name, value in transport.items()}
        done = run(code, {**os.environ, **variables, "ONCEWARD_LINEAGE": asked})
        events = (tmp_path / "events").read_text().splitlines() if told else []
        assert len(events) == told
        assert done.stderr.count("ONCEWARD_LINEAGE=marquez is unknown") == (asked == "marquez")

    def test_targets_are_named_as_openlineage_names_them_and_without_passwords(self, tmp_path: Path) -> None:
        assert FileSink("files", tmp_path).dataset() == ("file", str(tmp_path))
        mine = SqlAlchemySink(name="t", url="postgresql+psycopg://me:secret@db/shop", table="totals", commit="staging")
        assert mine.dataset() == ("postgres://db:5432", "shop.public.totals")
        assert KafkaSink(name="k", bootstrap_servers="b:1").dataset() is None
        redis = RedisSink("r", tmp_path, url="redis://u:secret@cache:6379/2", key="orders:{id}", form="hash")
        assert redis.dataset() == ("redis://cache:6379", "2.hash.orders:{id}")
        hooks = [HttpSink("h", tmp_path, url=f"https://api.example/hook/{token}").dataset() for token in ("a", "b")]
        assert [hook and hook[0] for hook in hooks] == ["https://api.example"] * 2
        assert hooks[0] != hooks[1]
        rotated = [HttpSink("h", tmp_path, url=f"https://api.example/in?key={key}").dataset() for key in ("a", "b")]
        assert rotated[0] == rotated[1]
        assert TargetSink.dataset(TargetSink(name="a")) is None  # type: ignore[arg-type]

    def test_the_target_of_a_direct_sink_is_named_too(self, transport: Transport) -> None:
        graph = pipeline(checkpointing=CheckpointConfig())
        graph.source(SequenceSource(numbers(20))).sink(Shown())
        graph.run()
        outputs = [output for event in transport.emitted for output in event["outputs"]]
        assert [(output["namespace"], output["name"]) for output in outputs] == [("shop", "shown")]
        assert outputs[0]["outputFacets"]["outputStatistics"]["rowCount"] == 20


class Shown(DirectSink[None]):
    """Its target has a name."""

    def __init__(self) -> None:
        super().__init__("direct")

    def dataset(self) -> tuple[str, str]:
        return "shop", "shown"

    def open(self, context: WriteContext) -> None:
        """Nothing to open."""

    def write(self, writer: None, batch: pa.RecordBatch) -> None:
        """Nothing is kept."""


REPORT = {
    "id": "q",
    "name": None,
    "batchId": 7,
    "numInputRows": 100,
    "durationMs": {"triggerExecution": 1500},
    "stateOperators": [{"numRowsTotal": 4}],
    "sink": {"description": "ForeachBatchSink", "numOutputRows": -1},
}


class TestSparkProgress:
    def report(self, **changes: Any) -> Any:
        from types import SimpleNamespace

        return SimpleNamespace(progress=SimpleNamespace(json=json.dumps({**REPORT, **changes})))

    def test_a_report_has_the_rows_that_were_committed(self, registry: Registry) -> None:
        from onceward import ProgressListener

        listener = ProgressListener()
        bench = Bench()
        one = bench.committable(bench.opened(), 0)
        two = msgspec.structs.replace(one, sink="b", rows=5)
        tell(completed(input=EpochInput(query="q"), committables=[one, two]))
        assert listener.last_progress("q") is None
        listener.onQueryProgress(self.report())
        progress: Any = listener.last_progress("q")
        assert progress["sink"]["numOutputRows"] == 6
        assert progress["sink"]["onceward"] == {"a": 1, "b": 5}
        assert registry.value("onceward_spark_input_rows_total") == 100
        assert registry.value("onceward_spark_batch_duration_seconds_sum") == 1.5
        assert registry.value("onceward_spark_state_rows") == 4

    def test_a_report_says_how_far_a_kafka_source_is_behind_as_that_of_sparks_own_source_does(
        self, registry: Registry
    ) -> None:
        from onceward import ProgressListener

        listener = ProgressListener()
        kafka = {"endOffset": {"t": {"0": 10, "1": 3}}, "latestOffset": {"t": {"0": 15, "1": 3, "2": 4}}, "metrics": {}}
        own = {**kafka, "metrics": {"maxOffsetsBehindLatest": "7"}}
        files = {"endOffset": {"logOffset": 1}, "latestOffset": None}
        listener.onQueryProgress(self.report(name="p", sources=[kafka, own, files, {**kafka, "latestOffset": None}]))
        progress: Any = listener.last_progress("q")
        first, *others = progress["sources"]
        assert first["metrics"] == {
            "avgOffsetsBehindLatest": "3.0",
            "minOffsetsBehindLatest": "0",
            "maxOffsetsBehindLatest": "5",
        }
        assert others == [own, files, {**kafka, "latestOffset": None}]
        assert registry.value("onceward_spark_offsets_behind_latest", source="t") == 7

    def test_two_kafka_sources_of_a_query_have_a_lag_each(self, registry: Registry) -> None:
        from onceward import ProgressListener

        sources: list[Any] = [
            {"endOffset": '{"orders":{"0":1}}', "metrics": {"maxOffsetsBehindLatest": "7"}},
            {"endOffset": {"b": {}, "a": {}, "d": {}, "c": {}}, "metrics": {"maxOffsetsBehindLatest": "3"}},
            {"endOffset": "{", "metrics": {"maxOffsetsBehindLatest": "1"}},
        ]
        ProgressListener().onQueryProgress(self.report(name="p", sources=sources))
        lags = {name: registry.value("onceward_spark_offsets_behind_latest", source=name) for name in LAGS}
        assert lags == LAGS

    def test_a_report_of_another_query_stays_as_it_is(self, told: list[Event]) -> None:
        from onceward import ProgressListener

        listener = ProgressListener()
        listener.onQueryProgress(self.report(name="other"))
        progress: Any = listener.last_progress("q")
        assert progress["sink"]["numOutputRows"] == -1
        [event] = [event for event in told if isinstance(event, QueryProgressed)]
        assert event.pipeline == "other"


LAGS = {"orders": 7, "a, b, c, …": 3, "": 1}
NAME = re.compile(r"onceward_[a-z_]+")
SHOWN = {
    name
    for metric in TABLE
    for name in (
        [f"{metric.prometheus}{end}" for end in ("_bucket", "_sum", "_count")]
        if metric.kind == "histogram"
        else [metric.prometheus]
    )
}


@pytest.mark.parametrize("path", [BOARD, RULES], ids=lambda path: path.name)
def test_each_metric_of_the_dashboard_and_the_rules_exists(path: Path) -> None:
    used = set(NAME.findall(path.read_text()))
    assert used
    assert used <= SHOWN


def test_the_dashboard_shows_every_metric() -> None:
    text = BOARD.read_text()
    assert [metric.prometheus for metric in TABLE if metric.prometheus not in text] == []


def test_no_two_lines_of_a_panel_have_the_same_legend() -> None:
    for panel in json.loads(BOARD.read_text())["panels"]:
        legends = [target["legendFormat"] for target in panel["targets"]]
        assert len(legends) == len(set(legends)), panel["title"]


PROMTOOL = shutil.which("promtool")


@pytest.mark.skipif(PROMTOOL is None, reason="there is no promtool: install Debian's package `prometheus`")
class TestPromtool:
    def promtool(self, *arguments: Any, given: str = "") -> None:
        done = subprocess.run(
            [str(PROMTOOL), *arguments], input=given, capture_output=True, text=True, check=False, cwd=ROOT
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr

    def test_metrics_that_are_scraped_pass_its_linter(self, registry: Registry) -> None:
        bench = Bench()
        bench.run(bench.opened(), 0)
        self.promtool("check", "metrics", given=prometheus_client.generate_latest(registry.client).decode())

    def test_each_alert_fires_when_it_is_due_and_not_before(self) -> None:
        self.promtool("test", "rules", "tests/prometheus_rules.yml")

    def test_each_alert_is_tested(self) -> None:
        fires = re.findall(r"alertname: (\w+)\n +exp_alerts", (ROOT / "tests" / "prometheus_rules.yml").read_text())
        assert set(fires) == set(re.findall(r"alert: (\w+)", RULES.read_text()))

    def test_each_query_of_the_dashboard_is_promql(self, tmp_path: Path) -> None:
        board = json.loads(BOARD.read_text())
        queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
        rules = [
            {"record": f"query_{number}", "expr": query.replace("$__rate_interval", "1m")}
            for number, query in enumerate(queries)
        ]
        file = tmp_path / "rules.yml"
        file.write_text(json.dumps({"groups": [{"name": "board", "rules": rules}]}))
        self.promtool("check", "rules", str(file))


def test_names_follow_prometheus_rules() -> None:
    for metric in TABLE:
        assert metric.prometheus.endswith("_total") == (metric.kind == "counter")
        assert metric.prometheus.removesuffix("_total").endswith("_seconds") == (metric.unit == "s")
        assert metric.help.endswith(".")


def test_the_table_in_the_docs_is_that_of_the_code() -> None:
    lines = ["| Prometheus | OpenTelemetry | type | labels | meaning |", "|---|---|---|---|---|"]
    lines += [
        f"| `{m.prometheus}` | `{m.name}` | {m.kind} | {', '.join(f'`{label}`' for label in m.all_labels)} | {m.help} |"
        for m in TABLE
    ]
    text = (ROOT / "docs" / "metrics.md").read_text()
    assert "\n".join(lines) in text
