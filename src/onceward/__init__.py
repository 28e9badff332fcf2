"""onceward: exactly-once sinks and sources for PySpark, by two-phase commit.

Everything that a user needs is here, and imported when it is asked for: `import onceward` loads neither pyspark nor
any client of an external system.
"""

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .cli.explain import Explanation, explain
    from .connectors.database.sink import PostgresSink, SqlAlchemySink
    from .connectors.files.sink import FileSink
    from .connectors.files.source import FileSource
    from .connectors.http.sink import HttpSink
    from .connectors.kafka.sink import KafkaSink
    from .connectors.kafka.source import KafkaSource
    from .connectors.monitoring import lineage, metrics
    from .connectors.redis.sink import RedisSink
    from .connectors.spark.any_source import read_stream
    from .connectors.spark.formats import register
    from .connectors.spark.handler import exactly_once
    from .connectors.spark.outputs import Output
    from .connectors.spark.query import ProgressListener
    from .core import (
        CheckpointConfig,
        FileBackend,
        ListState,
        MapState,
        MemoryBackend,
        OperatorState,
        Pipeline,
        ProcessFunction,
        ReducingState,
        RestartStrategy,
        RocksDBBackend,
        ValueState,
        open_store,
    )
    from .core.kit.logs import JsonFormatter
    from .core.names import Remembered
    from .core.transaction import (
        AbortOutcome,
        AbortStatus,
        CommitOutcome,
        CommitStatus,
        Committable,
        Observation,
        Progress,
        WriteContext,
    )
    from .sinks import (
        Delivery,
        DirectSink,
        Guarantee,
        IdempotentSink,
        Ledger,
        Scope,
        TwoPhaseCommitSink,
        WriteAheadLogSink,
    )
    from .sources import LiveSource, Piece, ResettableSource, SequenceSource, Split

__version__ = "0.1.0"
__all__ = [
    "AbortOutcome",
    "AbortStatus",
    "CheckpointConfig",
    "CommitOutcome",
    "CommitStatus",
    "Committable",
    "Delivery",
    "DirectSink",
    "Explanation",
    "FileBackend",
    "FileSink",
    "FileSource",
    "Guarantee",
    "HttpSink",
    "IdempotentSink",
    "JsonFormatter",
    "KafkaSink",
    "KafkaSource",
    "Ledger",
    "ListState",
    "LiveSource",
    "MapState",
    "MemoryBackend",
    "Observation",
    "OperatorState",
    "Output",
    "Piece",
    "Pipeline",
    "PostgresSink",
    "ProcessFunction",
    "Progress",
    "ProgressListener",
    "RedisSink",
    "ReducingState",
    "Remembered",
    "ResettableSource",
    "RestartStrategy",
    "RocksDBBackend",
    "Scope",
    "SequenceSource",
    "Split",
    "SqlAlchemySink",
    "TwoPhaseCommitSink",
    "ValueState",
    "WriteAheadLogSink",
    "WriteContext",
    "__version__",
    "exactly_once",
    "explain",
    "lineage",
    "metrics",
    "open_store",
    "read_stream",
    "register",
]

_MODULES: Final = {
    ".cli.explain": "Explanation explain",
    ".connectors.database.sink": "PostgresSink SqlAlchemySink",
    ".connectors.files.sink": "FileSink",
    ".connectors.files.source": "FileSource",
    ".connectors.http.sink": "HttpSink",
    ".connectors.kafka.sink": "KafkaSink",
    ".connectors.kafka.source": "KafkaSource",
    ".connectors.monitoring": "lineage metrics",
    ".connectors.redis.sink": "RedisSink",
    ".connectors.spark.any_source": "read_stream",
    ".connectors.spark.handler": "exactly_once",
    ".connectors.spark.outputs": "Output",
    ".connectors.spark.formats": "register",
    ".connectors.spark.query": "ProgressListener",
    ".core": """
        CheckpointConfig FileBackend ListState MapState MemoryBackend OperatorState Pipeline ProcessFunction
        ReducingState RestartStrategy RocksDBBackend ValueState open_store""",
    ".core.kit.logs": "JsonFormatter",
    ".core.names": "Remembered",
    ".core.transaction": """
        AbortOutcome AbortStatus CommitOutcome CommitStatus Committable Observation Progress WriteContext""",
    ".sinks": "Delivery DirectSink Guarantee IdempotentSink Ledger Scope TwoPhaseCommitSink WriteAheadLogSink",
    ".sources": "LiveSource Piece ResettableSource SequenceSource Split",
}
_HOMES: Final = {name: module for module, names in _MODULES.items() for name in names.split()}


_EXTRAS: Final = {
    "HttpSink": "http",
    "KafkaSink": "kafka",
    "KafkaSource": "kafka",
    "Output": "spark",
    "PostgresSink": "postgres",
    "ProgressListener": "spark",
    "RedisSink": "redis",
    "SqlAlchemySink": "sql",
    "exactly_once": "spark",
    "read_stream": "spark",
    "register": "spark",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(_HOMES[name], __name__), name)
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        if name not in _EXTRAS or missing in ("", "onceward"):
            raise
        from .core.errors import ConfigurationError  # noqa: PLC0415 - `import onceward` loads nothing else

        needs = f"{name} needs {_requirement(missing, _EXTRAS[name])}"
        raise ConfigurationError(f"{needs}: pip install 'onceward[{_EXTRAS[name]}]'") from None
    globals()[name] = value
    return value


def _requirement(package: str, extra: str) -> str:
    """Return the package that is missing, or the version that is needed and the one that is installed."""
    try:
        __import__(package)  # succeeds if only a part of the package is missing
        installed = metadata.version(package)
        required = [each for each in metadata.requires("onceward") or [] if f"extra == '{extra}'" in _quoted(each)]
    except ImportError:  # PackageNotFoundError is one, too
        return package
    needed = next((each.partition(";")[0].strip() for each in required if each.startswith(package)), package)
    return f"{needed}, and {package} {installed} is installed"


def _quoted(marker: str) -> str:
    return marker.replace('"', "'")


def __dir__() -> list[str]:
    return sorted(__all__)
