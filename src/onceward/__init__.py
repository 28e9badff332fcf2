"""onceward: exactly-once sinks and sources for PySpark, by two-phase commit.

What a user needs is here, and imported when it is asked for: `import onceward` loads neither pyspark nor any client of
an external system. `onceward.errors` has the errors, `onceward.sinks`, `onceward.sources` and `onceward.connectors`
what authors of these need, `onceward.types` the types of arguments, `onceward.operations` what operators do, and
`onceward.testing` what tests need.

A name whose extra is not installed is an ImportError for `from onceward import …`, an AttributeError for `onceward.…`,
and left out of `from onceward import *`.
"""

import logging
from typing import TYPE_CHECKING, Final

from ._lazy import LazyNames

if TYPE_CHECKING:  # as `X as X`, which type checkers take for exported
    from .cli.explain import Explanation as Explanation, explain as explain  # noqa: I001 - one import a module
    from .connectors.database.sink import PostgresSink as PostgresSink, SqlAlchemySink as SqlAlchemySink
    from .connectors.files.sink import FileSink as FileSink
    from .connectors.files.source import FileSource as FileSource
    from .connectors.http.sink import HttpSink as HttpSink
    from .connectors.kafka.sink import KafkaSink as KafkaSink
    from .connectors.kafka.source import KafkaSource as KafkaSource
    from .connectors.monitoring import lineage as lineage, metrics as metrics
    from .connectors.redis.sink import RedisSink as RedisSink
    from .connectors.spark.read.any_source import read_stream as read_stream
    from .connectors.spark.write.foreach_batch import EpochWriter as EpochWriter, ForeachBatch as ForeachBatch
    from .connectors.spark.formats.formats import register as register
    from .connectors.spark.write.handler import exactly_once as exactly_once
    from .connectors.spark.write.outputs import Output as Output
    from .connectors.spark.session.query import ProgressListener as ProgressListener
    from .core import (
        CheckpointConfig as CheckpointConfig,
        FileBackend as FileBackend,
        FunctionContext as FunctionContext,
        ListState as ListState,
        MapState as MapState,
        MemoryBackend as MemoryBackend,
        OperatorState as OperatorState,
        Pipeline as Pipeline,
        ProcessFunction as ProcessFunction,
        ReducingState as ReducingState,
        RestartStrategy as RestartStrategy,
        RocksDBBackend as RocksDBBackend,
        ValueState as ValueState,
        open_store as open_store,
    )
    from .core.engine.job import Job as Job, JobState as JobState
    from .core.engine.pipeline import Stream as Stream
    from .core.engine.state.row_store import StateBackend as StateBackend
    from .core.kit.json_logs import JsonFormatter as JsonFormatter
    from .core.log import EpochInput as EpochInput, LogStore as LogStore
    from .core.log.note_kinds import CheckpointRecord as CheckpointRecord
    from .core.contract.names import TransactionName as TransactionName
    from .core.contract.policy import OnLost as OnLost
    from .core.contract.transaction import (
        AbortOutcome as AbortOutcome,
        AbortStatus as AbortStatus,
        CommitOutcome as CommitOutcome,
        CommitStatus as CommitStatus,
        Committable as Committable,
        Observation as Observation,
        WriteContext as WriteContext,
    )
    from .sinks import (
        Delivery as Delivery,
        DirectSink as DirectSink,
        Guarantee as Guarantee,
        IdempotentSink as IdempotentSink,
        Ledger as Ledger,
        TwoPhaseCommitSink as TwoPhaseCommitSink,
        WriteAheadLogSink as WriteAheadLogSink,
    )
    from .sources import (
        LiveSource as LiveSource,
        ResettableSource as ResettableSource,
        SequenceSource as SequenceSource,
    )

try:  # of the files that run, which installed metadata need not be about: a zip file or PYTHONPATH may come first
    from ._version import __version__ as __version__
except ImportError:  # a source tree that was never installed
    __version__ = "0.0"

logging.getLogger(__name__).addHandler(logging.NullHandler())  # what is printed is up to the program

_TABLE: Final = {  # by the extra that they need: modules, each with its public names
    "": {
        ".cli.explain": "Explanation explain",
        ".connectors.files.sink": "FileSink",
        ".connectors.files.source": "FileSource",
        ".connectors.monitoring": "lineage metrics",
        ".core": """
            CheckpointConfig FileBackend FunctionContext ListState MapState MemoryBackend OperatorState Pipeline
            ProcessFunction ReducingState RestartStrategy ValueState open_store""",
        ".core.engine.job": "Job JobState",
        ".core.engine.pipeline": "Stream",
        ".core.engine.state.row_store": "StateBackend",
        ".core.kit.json_logs": "JsonFormatter",
        ".core.log": "EpochInput LogStore",
        ".core.log.note_kinds": "CheckpointRecord",
        ".core.contract.names": "TransactionName",
        ".core.contract.policy": "OnLost",
        ".core.contract.transaction": (
            "AbortOutcome AbortStatus CommitOutcome CommitStatus Committable Observation WriteContext"
        ),
        ".sinks": "Delivery DirectSink Guarantee IdempotentSink Ledger TwoPhaseCommitSink WriteAheadLogSink",
        ".sources": "LiveSource ResettableSource SequenceSource",
    },
    "http": {
        ".connectors.http.sink": "HttpSink",
    },
    "kafka": {
        ".connectors.kafka.sink": "KafkaSink",
        ".connectors.kafka.source": "KafkaSource",
    },
    "postgres": {
        ".connectors.database.sink": "PostgresSink",
    },
    "redis": {
        ".connectors.redis.sink": "RedisSink",
    },
    "rocksdb": {
        ".core": "RocksDBBackend",
    },
    "spark": {
        ".connectors.spark.read.any_source": "read_stream",
        ".connectors.spark.write.foreach_batch": "EpochWriter ForeachBatch",
        ".connectors.spark.formats.formats": "register",
        ".connectors.spark.write.handler": "exactly_once",
        ".connectors.spark.write.outputs": "Output",
        ".connectors.spark.session.query": "ProgressListener",
    },
    "sql": {
        ".connectors.database.sink": "SqlAlchemySink",
    },
}
_NAMES: Final = LazyNames(__name__, _TABLE, ("__version__",))
__dir__ = _NAMES.listed

if not TYPE_CHECKING:  # so that type checkers find names that do not exist
    __getattr__ = _NAMES.attribute
