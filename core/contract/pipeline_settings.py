"""What a pipeline can be told. Each setting is described here, and nowhere else.

From it come the keyword arguments of `exactly_once`, `ForeachBatch` and the embedded engine's `Pipeline` with their
types, defaults and docstrings, the options of Spark's formats, and the tables in docs/. A new setting is one entry in
the class of those drivers that take it, and `refused` says for each other driver why it does not.
"""

# The annotations are objects, and text where only type checkers know a type: no `from __future__ import annotations`.

from typing import TYPE_CHECKING, Annotated, Final, Literal, Required, TypedDict

from ..kit.driver_settings import OF_FORMATS, Driver, Setting, option_of
from .policy import COMMIT_BACKOFF, COMMIT_TIMEOUT, DEFAULT_ON_LOST, AnyOnLost

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ..log import EpochInput, LogStore
    from .dead_letters import Limit
    from .sink import AnySink

Writers = int | Literal["auto"] | None
Persist = Literal["DISK_ONLY", "MEMORY_AND_DISK"]
DEFAULT_LIMIT: Final = 1000
"""The most rows of an epoch that may be refused, unless its user says otherwise."""

_EXACTLY_ONCE: Final = "exactly_once"
_FOREACH_BATCH: Final = "ForeachBatch"
_ENGINE: Final = "Pipeline"
STREAM: Final = "streaming query"
"""A streaming query through a format."""
BATCH: Final = "batch write"
"""A batch write through a format."""
DRIVERS: Final = (_EXACTLY_ONCE, _FOREACH_BATCH, STREAM, BATCH, _ENGINE)
"""Whatever runs a pipeline; each setting is taken or refused by each."""

_OF_STREAMS: Final = "belongs to a streaming query: leave it out"
_OF_BATCHES: Final = "belongs to a batch write: leave it out"
_OF_STARTS: Final = "is an argument of start() and run()"
_ONE_SINK: Final = "belongs to exactly_once: a format has one sink, which reads each micro-batch once"
_SECOND_SINK: Final = "is for Spark: send rows that a condition finds to a sink of their own"
_NAME: Final = (
    "Name of the pipeline, up to 64 letters, digits, `.`, `_` and `-`. It is part of every transaction's name, so it "
    "must not change between runs, and no two pipelines may share it. By this name the targets know which decision log "
    "has written into them, so a query whose checkpoint was deleted is refused."
)
_IN_CHECKPOINT: Final = "Default: the folder `onceward` in the checkpoint."
_PENDING: Final = (
    "Then the query fails with CommitPendingError; the decision remains valid, and the query's next start commits it."
)


class CommitSettings(TypedDict, total=False):
    """The settings of every pipeline."""

    store: Annotated[
        "str | Path | LogStore | None",
        Setting(
            "Place of the decision log: a folder, a URL, or the result of `open_store`.",
            None,
            also={
                _EXACTLY_ONCE: _IN_CHECKPOINT,
                _FOREACH_BATCH: _IN_CHECKPOINT,
                _ENGINE: "Default: memory, which does not survive a restart of the process.",
            },
        ),
    ]
    commit_timeout: Annotated[
        float,
        Setting(
            "Seconds for which a commit is retried while a target does not answer.",
            COMMIT_TIMEOUT,
            also={
                _EXACTLY_ONCE: _PENDING,
                _FOREACH_BATCH: _PENDING,
                _ENGINE: "Then the attempt fails, and the restart strategy decides when the next one commits it.",
            },
        ),
    ]
    commit_backoff: Annotated[
        float,
        Setting(
            "Longest pause between two attempts to commit, in seconds; the first pauses are shorter.", COMMIT_BACKOFF
        ),
    ]
    on_lost: Annotated[
        AnyOnLost,
        Setting(
            'Policy for a decided transaction that can no longer be committed. "replay" writes again what is proven '
            "not committed: the whole epoch if nothing of it is visible yet, otherwise only what was lost, and only if "
            'count and hash of all that the sinks were handed are those of the decision. "fail" stops with '
            'DataLossError and commits nothing more. "skip" goes on without the lost rows and leaves an audit record.',
            DEFAULT_ON_LOST,
            also={
                _ENGINE: "An epoch is a checkpoint here: it is written again from the previous one on, and only what "
                "was lost if the sources can be read again. It fails where that is not sound."
            },
        ),
    ]


class _Rewinding(TypedDict, total=False):
    rewind: Annotated[
        str | None,
        Setting(
            "Reason why the pipeline goes back to an older state on purpose. The decision log records it, and the "
            "rewind is done once: a later start with the same reason continues.",
            None,
            also={
                _EXACTLY_ONCE: "A query is refused whose checkpoint does not go on from there.",
                _FOREACH_BATCH: "A function that has left batches out on purpose needs it, too.",
                "Pipeline.start": "Without `restore`, the pipeline starts over: no state, and sources at their "
                "beginning.",
            },
            refused={BATCH: _OF_STREAMS, _ENGINE: _OF_STARTS},
        ),
    ]


class _TakingOver(TypedDict, total=False):
    take_over: Annotated[
        float | None,
        Setting(
            "Seconds for which the start waits for another driver that runs the pipeline: that one finishes its epoch "
            "and ends, and this one goes on from there. If none answers within five seconds, or an epoch takes longer, "
            "this one starts as after a crash, and fences the other. None: at once.",
            None,
            refused=dict.fromkeys(
                (_FOREACH_BATCH, STREAM, BATCH),
                "belongs to exactly_once, which knows the pipeline before the query starts",
            )
            | {_ENGINE: _OF_STARTS},
        ),
    ]


class _Checkpointed(TypedDict, total=False):
    checkpoint: Annotated[
        "str | Path | None",
        Setting(
            "Spark's checkpoint folder of this query. Default: `spark.sql.streaming.checkpointLocation`, which the "
            "formats cannot see: they need the option. Without either, Spark would make a temporary folder, and a "
            "restart would write everything again.",
            None,
            option="checkpointLocation",
            refused={
                _FOREACH_BATCH: "belongs to the query: give its writer option('checkpointLocation', …)",
                BATCH: _OF_STREAMS,
                _ENGINE: "belongs to Spark: give store=…, and the folder of a savepoint to start(restore=…)",
            },
        ),
    ]


class _QuerySettings(CommitSettings, _Rewinding, total=False):
    """The settings of every streaming query of Spark."""

    adopt: Annotated[
        bool,
        Setting(
            "Start with an empty decision log at whatever batch the query has reached, because it has written in "
            "another way until now.",
            default=False,
            refused={
                BATCH: _OF_STREAMS,
                _ENGINE: "belongs to Spark's queries: the engine counts its checkpoints by itself",
            },
        ),
    ]


class ForeachBatchSettings(_QuerySettings, total=False):
    """The settings of `ForeachBatch`, as it takes them by keyword."""

    pipeline: Required[Annotated[str, Setting(_NAME, refused={_ENGINE: "is its first argument: name"})]]
    writers: Annotated[
        "Writers",
        Setting(
            'Maximum number of tasks that write an epoch. "auto": as many as can run at the same time, and fewer if '
            "few rows come in and the query's tasks do little but write them; very few rows (up to 10,000, about 8 MB) "
            "are written by the driver itself. None: one for each partition. Each task writes one transaction in each "
            "sink, and also does the work of its stage before the sinks, back to the last shuffle.",
            "auto",
            refused=dict.fromkeys(
                (STREAM, BATCH), "belongs to exactly_once: Spark decides how many tasks write through a format"
            )
            | {_ENGINE: "belongs to Spark: give parallelism=…"},
        ),
    ]
    persist: Annotated[
        "Persist",
        Setting(
            "Storage level at which Spark keeps the rows of a micro-batch until it is committed, if they are read more "
            'than once: "DISK_ONLY" (the executors\' disks, no memory), or "MEMORY_AND_DISK" (in the executors\' '
            "storage memory as far as there is room, the rest on disk). Without an Output that has a function, and "
            "without a second DataFrame, nothing is kept.",
            "DISK_ONLY",
            refused={STREAM: _ONE_SINK, BATCH: _ONE_SINK, _ENGINE: "belongs to Spark: the engine keeps no rows"},
        ),
    ]
    dead_letter: Annotated[
        "AnySink | None",
        Setting(
            "Sink for the rows that other sinks refuse for their values, in the same epoch. It gets the refused row as "
            "JSON, the reason, the sink, and the topic, partition and offset where the query has these columns. "
            "Default: a refused row fails its epoch.",
            None,
            refused={STREAM: _ONE_SINK, BATCH: _ONE_SINK, _ENGINE: _SECOND_SINK},
        ),
    ]
    max_dead_letters: Annotated[
        "Limit",
        Setting(
            "Limit of refused rows in an epoch, above which the query stops: a number of rows, or as a float a share "
            "of the epoch's rows for any one sink. None: no limit.",
            DEFAULT_LIMIT,
            refused={STREAM: _ONE_SINK, BATCH: _ONE_SINK, _ENGINE: _SECOND_SINK},
        ),
    ]
    on_complete: Annotated[
        "Callable[[int, EpochInput], None] | None",
        Setting(
            "Function that is called on the driver after an epoch's COMPLETED entry is durable, with the epoch's "
            "number and its input, in the query's own thread. After a restart it is called again for the newest epoch.",
            None,
            refused=dict.fromkeys((STREAM, BATCH), "belongs to exactly_once: an option is text, and no function")
            | {_ENGINE: "belongs to Spark: look at Pipeline.checkpoints"},
        ),
    ]


class ExactlyOnceSettings(_Checkpointed, ForeachBatchSettings, _TakingOver, total=False):
    """The settings of `exactly_once`, as it takes them by keyword."""


class FormatSettings(_Checkpointed, _QuerySettings, total=False):
    """The settings that the formats take as options; each is text there."""

    pipeline: Annotated[str | None, Setting(f"{_NAME} Default: the query's id.", None)]
    run_key: Annotated[
        str | None,
        Setting(
            "Identity of a batch write: a rerun with the same one writes nothing again.",
            None,
            refused=dict.fromkeys((_EXACTLY_ONCE, _FOREACH_BATCH, STREAM, _ENGINE), _OF_BATCHES),
        ),
    ]


class StartSettings(_Rewinding, _TakingOver, total=False):
    """The settings of a run of the embedded engine, as `Pipeline.start` and `Pipeline.run` take them by keyword."""

    restore: Annotated[
        "str | Path | None",
        Setting(
            "Folder of a savepoint or checkpoint to begin with; default: the newest checkpoint, if there is one.", None
        ),
    ]
    claim: Annotated[
        bool,
        Setting(
            "The pipeline owns that folder from now on, and deletes it once a newer checkpoint exists.", default=False
        ),
    ]
    import_from: Annotated[
        str | None,
        Setting(
            "Name of the pipeline that made the folder, if it was made under another decision log. Only that log knows "
            "whether the rows before it were committed.",
            None,
        ),
    ]
    allow_non_restored_state: Annotated[
        bool, Setting("Drop the state of operators that no longer exist.", default=False)
    ]


EXACTLY_ONCE: Final = Driver(_EXACTLY_ONCE, ExactlyOnceSettings)
FOREACH_BATCH: Final = Driver(_FOREACH_BATCH, ForeachBatchSettings)
FORMAT: Final = Driver("format", FormatSettings)
ENGINE: Final = Driver(_ENGINE, CommitSettings)
ENGINE_START: Final = Driver("Pipeline.start", StartSettings)
OF_FORMATS.update({option_of(name): name for name in FORMAT.settings})
