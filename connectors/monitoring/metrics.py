"""Metrics of this process's pipelines, for Prometheus and OpenTelemetry.

One call turns them on: `metrics.serve(9464)`, `metrics.prometheus(registry)` or `metrics.opentelemetry(provider)`. The
formats of Spark run in processes of their own, where no user's code does: there the environment variable
ONCEWARD_METRICS says what to do.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final

from onceward.core.contract.connector import connector_of
from onceward.core.contract.events import EpochCompleted, Event, observe
from onceward.core.errors import ConfigurationError, MissingExtraError

from .table import BUCKETS, LSO_LAG, TABLE, Metric, MetricKind, samples

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from onceward.core.contract.sink import Sink

    Recorder = Callable[[float, tuple[str, ...]], None]
__all__ = ["opentelemetry", "prometheus", "serve"]

_log = logging.getLogger("onceward.observers")
VARIABLE: Final = "ONCEWARD_METRICS"
DEFAULT_PORT: Final = 9464
"""Port of OpenTelemetry's exporter for Prometheus."""
_MULTIPROCESS: Final = "PROMETHEUS_MULTIPROC_DIR"
LAG_SECONDS: Final = 15.0
"""Seconds between two looks at the last stable offsets of a sink."""
_made: Final[dict[int, tuple[Any, _Exporter]]] = {}
"""Exporters by the identity of a registry or provider: each gets its metrics once."""


def serve(port: int = DEFAULT_PORT, host: str = "0.0.0.0") -> int:  # noqa: S104 - as Prometheus' own client
    """Serve this process's metrics to Prometheus at http://host:port/metrics, in a background thread.

    With PROMETHEUS_MULTIPROC_DIR set, the metrics of all processes that use the folder are served: so those of the
    formats too, with ONCEWARD_METRICS=prometheus.

    Args:
        port: TCP port; 0 for any free one.
        host: Address to listen at. The page shows names of pipelines and sinks; there is no password.

    Returns:
        The port.

    Raises:
        ConfigurationError: prometheus-client is not installed, or the port is not free.
    """
    client = _prometheus_client()
    prometheus()
    registry = client.REGISTRY
    if _MULTIPROCESS in os.environ:
        registry = client.CollectorRegistry()
        client.multiprocess.MultiProcessCollector(registry)
    try:
        server, _ = client.start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise ConfigurationError(
            f"metrics cannot be served at {host}:{port}: {error.strerror}. Is another pipeline's process on this "
            "machine serving there? Give each its own port, or use OpenTelemetry"
        ) from error
    return int(server.server_port)


def prometheus(registry: Any = None) -> None:
    """Register this process's metrics with a registry of prometheus-client.

    Args:
        registry: A CollectorRegistry; None for the default one, which an application may serve already.

    Raises:
        ConfigurationError: prometheus-client is not installed.
    """
    client = _prometheus_client()
    registry = client.REGISTRY if registry is None else registry
    _start(registry, lambda metric: _prometheus_recorder(client, metric, registry))


def opentelemetry(provider: Any = None) -> None:
    """Record this process's metrics with OpenTelemetry's meter `onceward`.

    Args:
        provider: A MeterProvider; None for the global one, or, where none is set and the SDK is installed, one that
            exports as OTEL_METRICS_EXPORTER says (default: otlp) and that reads the SDK's other OTEL_* variables.

    Raises:
        ConfigurationError: opentelemetry-api is not installed, or the exporter is not.
    """
    try:
        from opentelemetry import metrics as api  # noqa: PLC0415 - an extra
    except ImportError as error:
        advice = "OpenTelemetry is not installed: pip install 'onceward[opentelemetry]'"
        raise MissingExtraError(advice, name=error.name) from error
    if provider is None:
        provider = api.get_meter_provider()
        if type(provider).__name__ == "_ProxyMeterProvider":
            provider = _provider_of_environment()
            api.set_meter_provider(provider)
    meter = provider.get_meter("onceward")
    _start(provider, lambda metric: _otel_recorder(meter, metric))


def into_folder() -> None:
    """Register this process's metrics where PROMETHEUS_MULTIPROC_DIR says.

    Raises:
        ConfigurationError: It is not set, or prometheus-client is not installed.
    """
    if _MULTIPROCESS not in os.environ:
        raise ConfigurationError(
            f"nobody could read them. Set {_MULTIPROCESS} to an empty folder, for this process and for the driver, "
            "which serves them with metrics.serve(port)"
        )
    prometheus()


class _Exporter:
    """Observer that hands each sample to its instrument, and now and then asks sinks for their lag, in a thread."""

    def __init__(self, recorders: Mapping[Metric, Recorder]) -> None:
        self._recorders = recorders
        self._next_look: dict[tuple[str, ...], float] = {}

    def __call__(self, event: Event) -> None:
        for metric, value, labels in samples(event):
            self._recorders[metric](value, labels)
        if isinstance(event, EpochCompleted):
            sinks = {(event.pipeline, name): sink for name, sink in event.sinks.items()}
            now = time.monotonic()
            due = {labels: sink for labels, sink in sinks.items() if now >= self._next_look.get(labels, 0.0)}
            self._next_look |= dict.fromkeys(due, now + LAG_SECONDS)
            if due:  # the epoch does not wait for it
                threading.Thread(target=self._look, args=(due,), name="onceward-lag", daemon=True).start()

    def _look(self, due: Mapping[tuple[str, ...], Sink]) -> None:
        for labels, sink in due.items():
            try:
                kind = connector_of(sink)
                lag = kind.readers_lag(sink) if kind is not None else None
                if lag is not None:
                    self._recorders[LSO_LAG](lag, labels)
            except Exception as error:  # noqa: BLE001 - a broker's, or an exporter's
                _log.debug("no last stable offsets of sink %s: %s", labels[-1], error)


def _start(owner: Any, recorder: Callable[[Metric], Recorder]) -> None:
    if id(owner) not in _made:
        exporter = _Exporter({metric: recorder(metric) for metric in TABLE})
        _made[id(owner)] = owner, exporter
        observe(exporter)


def _prometheus_client() -> Any:
    try:
        import prometheus_client.multiprocess  # noqa: PLC0415 - an extra
    except ImportError as error:
        advice = "prometheus-client is not installed: pip install 'onceward[prometheus]'"
        raise MissingExtraError(advice, name=error.name) from error
    return prometheus_client


def _prometheus_recorder(client: Any, metric: Metric, registry: Any) -> Recorder:
    common = (metric.prometheus, metric.help, metric.all_labels)
    match metric.kind:
        case MetricKind.COUNTER:
            counter = client.Counter(*common, registry=registry)
            return lambda value, labels: counter.labels(*labels).inc(value)
        case MetricKind.GAUGE:
            gauge = client.Gauge(*common, registry=registry, multiprocess_mode="mostrecent")
            return lambda value, labels: gauge.labels(*labels).set(value)
        case MetricKind.HISTOGRAM:
            histogram = client.Histogram(*common, registry=registry, buckets=BUCKETS)
            return lambda value, labels: histogram.labels(*labels).observe(value)


def _otel_recorder(meter: Any, metric: Metric) -> Recorder:
    names = metric.all_labels
    about = {"unit": metric.unit, "description": metric.help}
    match metric.kind:
        case MetricKind.COUNTER:
            record = meter.create_counter(metric.name, **about).add
        case MetricKind.GAUGE:
            record = meter.create_gauge(metric.name, **about).set
        case MetricKind.HISTOGRAM:
            record = meter.create_histogram(metric.name, **about, explicit_bucket_boundaries_advisory=BUCKETS).record
    return lambda value, labels: record(value, dict(zip(names, labels, strict=True)))


def _provider_of_environment() -> Any:
    try:
        from opentelemetry.sdk.metrics import MeterProvider, export  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigurationError(
            "OpenTelemetry has no MeterProvider: install opentelemetry-sdk, or give metrics.opentelemetry(provider)"
        ) from error
    exporter = os.environ.get("OTEL_METRICS_EXPORTER", "otlp")
    readers = []
    for name in (part.strip() for part in exporter.split(",") if part.strip() != "none"):
        exporters = {point.name: point for point in entry_points(group="opentelemetry_metrics_exporter")}
        point = exporters.get(f"{name}_proto_{_protocol()}") or exporters.get(name)
        if point is None:
            raise ConfigurationError(
                f"OTEL_METRICS_EXPORTER={name}: no such exporter is installed (pip install opentelemetry-exporter-"
                f"{name}); there is {', '.join(sorted(exporters)) or 'none'}"
            )
        readers.append(export.PeriodicExportingMetricReader(point.load()()))
    return MeterProvider(metric_readers=readers)


def _protocol() -> str:
    """Return the protocol of OTLP, as the entry points of its exporters are called."""
    variables = ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    protocol = next((os.environ[name] for name in variables if name in os.environ), "grpc")
    return "http" if protocol.startswith("http") else protocol
