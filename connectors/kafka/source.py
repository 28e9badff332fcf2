"""KafkaSource: topics as a resettable source, read_committed and bounded by the last stable offset.

What to read next is decided purely (positions.py), from what the brokers hold (topic_metadata.py);
consumer.py reads ranges.
"""

from __future__ import annotations

import copy
import logging
import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Self, get_args

from onceward.core.contract.source import Piece, Position, ResettableSource
from onceward.core.errors import ConfigurationError, SourceError
from onceward.core.kit.text_options import as_option, check_choice, check_types

from . import positions
from .admin import publish_offsets
from .consumed_batches import check_timestamps, schema
from .consumer import Gone, RangeConsumer, lend_consumer
from .positions import (
    FROM_LATEST,
    AtOffsets,
    Bound,
    Offsets,
    Partition,
    TopicSplit,
    check_end,
    from_json,
    in_share,
    offsets_as_json,
    parse_bound,
)
from .settings import KafkaSettings
from .topic_metadata import Found, Lookup, Selection, bound_offsets, find

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from onceward.core.contract.source import Split
    from onceward.core.kit.text_options import Names

_log = logging.getLogger("onceward.sources")

Isolation = Literal["read_committed", "read_uncommitted"]
InvalidTimestamps = Literal["error", "null"]
COMMITTED: Final = "read_committed"
ISOLATION: Final = "isolation.level"
RETRY_SECONDS: Final = 120.0
_IDS: Final = ""
"""Where a position has ids of topics: no topic has this name."""


class KafkaSource(ResettableSource):
    """Source that reads Kafka topics: key, value, topic, partition, offset, timestamp, timestampType[, headers].

    Exactly one of `topics`, `pattern` and `assign` selects what is read. New partitions, and with `pattern` new
    topics, are picked up and read from their beginning.

    Args:
        bootstrap_servers: Addresses of brokers: comma-separated `host:port`, or a list of them. Required, here or in
            `config`.
        topics: Names of the topics; as an option, comma-separated.
        pattern: Regular expression (Python's) that matches a part of the topics' names, as in Spark's own source: for
            one topic alone write `^orders$`. Kafka's own topics are left out.
        assign: Partitions: `{"orders": [0, 1]}`, or this as JSON text.
        starting: Where a pipeline without a stored position begins: "earliest", "latest", an offset for every partition
            (`{"orders": {"0": 23, "1": -2}}`; -2 is the earliest, -1 the latest), a datetime with zone, or an `AtTime`.
            The Spark option's default is `earliest` for a batch query and `latest` for a stream.
        ending: Where reading ends, in the same forms; the end is exclusive. Default: never. The Spark option is for
            batch queries only, and its default is `latest`.
        config: Further settings under librdkafka's names. docs/kafka-settings.md says where each of them goes, and
            which are refused.
        include_headers: Add the column `headers`.
        isolation: "read_committed" (the default) or "read_uncommitted", which also delivers records that are aborted
            later: then a replay is not identical, and nothing downstream is exactly once.
        fail_on_data_loss: Whether lost records are an error. If not, they are left out and logged as a warning.
        min_partitions: Split ranges of offsets, the longest first, until there are at least this many tasks.
            Partitions without new records do not count, so a busy one may be split even if there are more partitions
            than this. Spark's tasks may then write the records of one key in another order than they had. Default: one
            task for each Kafka partition.
        max_offsets_per_trigger: Approximate number of offsets in an epoch, shared in proportion to each partition's
            backlog; each partition with a backlog advances by at least one. Streams only. Default: all that are
            available.
        max_records_per_partition: Split ranges that hold more offsets than this. Spark's tasks may then write the
            records of one key in another order than they had.
        min_records_per_partition: Let a task of Spark read several short ranges, one after another, until it has this
            many offsets: a task costs tens of milliseconds. Default: each range has its own task.
        group: Consumer group to which offsets are published after their epoch is completed. They are never read from
            it. Default: `group.id` in `config`.
        timeout: Seconds (as an option: milliseconds) for which the brokers may deliver none of the records that they
            hold, or not answer at all. The first answer must come within 10 s.
        invalid_timestamps: What to make of a record's timestamp that is more than 292,000 years from 1970, as
            nanoseconds given as milliseconds are: "error", or "null" in the column `timestamp`. A query that does not
            use the column fails, too: a Python source is not told which columns Spark needs.

    Raises:
        ConfigurationError: A setting is wrong.
    """

    def __init__(
        self,
        *,
        bootstrap_servers: str | list[str] | None = None,
        topics: Names | None = None,
        pattern: str | None = None,
        assign: Mapping[str, Sequence[int]] | str | None = None,
        starting: Any = "earliest",
        ending: Any = None,
        config: Mapping[str, Any] | None = None,
        include_headers: bool = False,
        isolation: Isolation | None = None,
        fail_on_data_loss: bool = True,
        min_partitions: int | None = None,
        max_offsets_per_trigger: int | None = None,
        max_records_per_partition: int | None = None,
        min_records_per_partition: int | None = None,
        group: str | None = None,
        timeout: float = RETRY_SECONDS,
        invalid_timestamps: InvalidTimestamps = "error",
    ) -> None:
        check_types(KafkaSource, locals())
        self.selection = Selection.of(None if topics is None else list(topics), pattern, assign)
        self.starting: Bound = parse_bound(starting, "starting")
        self.ending: Bound | None = check_end(parse_bound(ending, "ending")) if ending is not None else None
        own_config = {name: value for name, value in (config or {}).items() if value is not None}
        self.settings = KafkaSettings(bootstrap_servers, {ISOLATION: isolation or COMMITTED, **own_config})
        self._committed = str(self.settings[ISOLATION]).lower() == COMMITTED
        self.include_headers = include_headers
        self.fail_on_data_loss = fail_on_data_loss
        self.min_partitions = min_partitions
        self.max_offsets_per_trigger = max_offsets_per_trigger
        self.max_records_per_partition = max_records_per_partition
        self.min_records_per_partition = min_records_per_partition
        self.group = group or self.settings.get("group.id")
        self.timeout = timeout
        self.invalid_timestamps = check_choice("invalid_timestamps", invalid_timestamps, get_args(InvalidTimestamps))
        self._share: tuple[int, int] | None = None
        self._ids: dict[str, str] = {}
        """Topics' ids as this object last saw them."""
        self.newest: Position | None = None
        """Where the partitions ended when `latest` last looked."""
        _check_numbers(self)

    @property
    def leaves_out(self) -> bool:
        return not self.fail_on_data_loss

    @property
    def schema(self) -> pa.Schema:
        return schema(include_headers=self.include_headers)

    @property
    def bounded(self) -> bool:
        return self.ending is not None

    @property
    def weakness(self) -> str:
        if not self._committed:
            return "delivers what is aborted later (isolation.level read_uncommitted), so a replay may differ"
        return ""

    @property
    def counts_rows(self) -> bool:
        """False: control records, and aborted and compacted ones, have offsets and are not delivered."""
        return False

    @property
    def rows_per_epoch(self) -> int | None:
        return self.max_offsets_per_trigger

    @property
    def rows_per_task(self) -> int:
        return self.min_records_per_partition or 1

    def validate(self) -> None:
        RangeConsumer(self.settings).close()
        self._complete()

    def start(self) -> Position:
        partitions = self._complete()
        self._ids |= partitions.ids
        start = bound_offsets(self.starting, partitions.partitions, self._lookup(), start=True)
        return self._own(self._within(self.starting, start, "startingOffsets (starting)"), partitions.ids)

    def end(self) -> Position:
        ending = self.ending or FROM_LATEST
        return self._own(bound_offsets(ending, self._find().partitions, self._lookup(), start=False))

    def latest(self, position: Position, limit: int | None = None, until: Position | None = None) -> Position:
        before, known = _offsets(position), {**position.get(_IDS, {}), **self._ids}
        partitions = self._find()
        held = self._lookup().held([p for p in partitions.partitions if self._is_own(p)], before)
        anew = {topic for topic, id_ in partitions.ids.items() if id_ and (known.get(topic) or id_) != id_}
        self._report_unselected([p for p in before if not self.selection.takes(p)])
        lost = positions.losses({p: at for p, at in before.items() if self.selection.takes(p)}, held, anew)
        self._report([str(loss) for loss in lost])
        self._ids |= partitions.ids
        self.newest = offsets_as_json({partition: there.stable for partition, there in held.items()})
        end = positions.reach(before, held, limit=limit, until=None if until is None else _offsets(until), anew=anew)
        return self._position(end, partitions.ids)

    def range(self) -> tuple[Position, Position]:
        """Start and end of a bounded read, both resolved now.

        Raises:
            ConfigurationError: It ends before it starts, or starts or ends beyond the end of a partition.
        """
        start, end = self.start(), self.end()
        if self.ending is not None:
            end = self._position(self._within(self.ending, _offsets(end), "endingOffsets (ending)"), {})
        ends = _offsets(end)
        wrong = [f"{p}: {o} to {ends[p]}" for p, o in _offsets(start).items() if p in ends and o > ends[p]]
        if wrong:
            raise ConfigurationError(f"reading would end before it starts: {', '.join(wrong)}")
        return start, end

    def splits(self, start: Position, end: Position, parallelism: int = 1) -> Sequence[Split]:
        ids = {**end.get(_IDS, {}), **self._ids}
        ranges = positions.ranges(_offsets(start), _offsets(end))
        whole = [TopicSplit(str(p), a, b, ids.get(p.topic, "")) for p, a, b in ranges]
        parts = max(parallelism, self.min_partitions or 1)
        return positions.cut(whole, parts, self.max_records_per_partition)

    def read(self, split: Split) -> Iterator[Piece]:
        partition, at = Partition.named(split.unit), split.start
        topic_id = split.topic_id if isinstance(split, TopicSplit) else ""
        is_there = partial(self._is_there, partition, topic_id)
        while at < split.end:
            why = None
            with lend_consumer(
                self.settings, partition.topic, topic_id, include_headers=self.include_headers
            ) as consumer:
                try:
                    for batch in consumer.read(partition, at, split.end, retry_seconds=self.timeout, is_there=is_there):
                        if self.invalid_timestamps == "error":
                            check_timestamps(batch, partition)
                        at = batch.column("offset")[-1].as_py() + 1
                        yield Piece(batch, at, batch.column("offset").to_numpy())
                except Gone as gone:
                    why = str(gone)
            at = split.end if why is None else self._past_loss(partition, topic_id, at, split.end, why)

    def advance(self, position: Position, split: Split, to: int) -> Position:
        return self._position(
            {**_offsets(position), Partition.named(split.unit): to}, {**position.get(_IDS, {}), **self._ids}
        )

    def share(self, subtask: int, parallelism: int) -> Self:
        part = copy.copy(self)
        part._share, part._ids = (subtask, parallelism), {}  # noqa: SLF001 - its own copy
        return part

    def merge(self, positions: Sequence[Position]) -> Position:
        merged = {partition: offset for position in positions for partition, offset in _offsets(position).items()}
        ids = {topic: id_ for position in positions for topic, id_ in position.get(_IDS, {}).items()}
        return self._own(merged, ids)

    def publish(self, position: Position) -> None:
        if self.group is not None:
            publish_offsets(self.settings, self.group, offsets_as_json(_offsets(position)))

    @property
    def reads(self) -> str:
        return f"{self.selection} at {self.servers}"

    def unanswered(self, timeout: float) -> str:
        lookup = self._lookup(timeout)
        try:
            lookup.offsets(dict.fromkeys(find(self.selection, lookup).partitions, positions.LATEST))
        except SourceError as error:
            return error.message
        return ""

    @property
    def servers(self) -> str:
        """The bootstrap servers."""
        return str(self.settings["bootstrap.servers"])

    def _is_own(self, partition: Partition) -> bool:
        return self._share is None or in_share(partition, *self._share)

    def _within(self, given: Bound, offsets: Offsets, what: str) -> Offsets:
        """Refuse offsets that the user gave beyond the ends of partitions; if losses are allowed, take the ends."""
        held = self._lookup().held(offsets, offsets) if isinstance(given, AtOffsets) and given.offsets else {}
        wrong = positions.beyond(offsets, held)
        if not wrong:
            return offsets
        ends = ", ".join(f"{p} ends at offset {held[p].end}, and {offset} was given" for p, offset in wrong.items())
        if self.fail_on_data_loss:
            raise ConfigurationError(
                f"{what} is beyond the end of a partition: {ends}. Give an offset that is not, or -1 (latest). With "
                "failOnDataLoss=false (fail_on_data_loss=False) the end is taken instead"
            )
        _log.warning("%s is beyond the end of a partition: %s. The end is taken (failOnDataLoss=false)", what, ends)
        return {**offsets, **{partition: held[partition].stable for partition in wrong}}

    def _own(self, offsets: Offsets, ids: Mapping[str, str] | None = None) -> Position:
        own = {partition: offset for partition, offset in offsets.items() if self._is_own(partition)}
        return self._position(own, ids or {})

    def _position(self, offsets: Offsets, ids: Mapping[str, str]) -> Position:
        """Return a position. The engine's has the topics' ids, for which Spark's offsets have no place."""
        position: Position = offsets_as_json(offsets)
        if self._share is not None:
            position[_IDS] = {topic: ids[topic] for topic in position if topic in ids}
        return position

    def _find(self) -> Found:
        return find(self.selection, self._lookup())

    def _complete(self) -> Found:
        partitions = self._find()
        if partitions.missing:
            raise SourceError(f"Kafka at {self.servers} has no {', '.join(partitions.missing)}: create it first")
        return partitions

    def _lookup(self, retry_seconds: float | None = None) -> Lookup:
        retry_seconds = self.timeout if retry_seconds is None else retry_seconds
        return Lookup(self.settings.connection(), committed=self._committed, retry_seconds=retry_seconds)

    def _is_there(self, partition: Partition, topic_id: str = "") -> bool:
        """Return whether the brokers know the partition of the topic with this id; True if they do not answer."""
        try:
            offset, count = self._lookup(retry_seconds=0).partitions_of([partition.topic]).get(partition.topic, ("", 0))
        except SourceError:
            return True
        return partition.number < count and (offset or topic_id) == (topic_id or offset)

    def _past_loss(self, partition: Partition, topic_id: str, at: int, end: int, why: str) -> int:
        here = self._lookup().held([partition], {partition: at})[partition] if self._is_there(partition) else None
        anew = here is not None and not self._is_there(partition, topic_id)
        loss = positions.Loss(partition, at, here, anew)
        if here is not None and not anew and here.earliest <= at <= here.end:
            raise SourceError(f"cannot read {partition} at offset {at}, though {here} is there: {why}")
        self._report([f"{loss}; wanted were offsets {at} to {end - 1}"])
        # The next plan reads a new topic from its beginning.
        return min(here.earliest, end) if here is not None and not anew and at < here.earliest else end

    def _report_unselected(self, partitions: list[Partition]) -> None:
        if not partitions:
            return
        text = f"this query has read {', '.join(map(str, sorted(partitions)))}, which its options no longer select"
        if self.fail_on_data_loss:
            raise ConfigurationError(
                f"{text}: records that it has not read yet would be left out. Nothing was skipped. Select them again "
                "by subscribe, subscribePattern or assign; or, to leave them out on purpose, set failOnDataLoss=false "
                "(fail_on_data_loss=False) until the first epoch is completed"
            )
        _log.warning("%s: they are left out, as failOnDataLoss=false allows", text)

    def _report(self, losses: list[str]) -> None:
        if losses and self.fail_on_data_loss:
            raise SourceError(
                f"records are lost before they were read: {'; '.join(losses)}. Nothing was skipped. Bring them back, "
                "or let the query leave them out by failOnDataLoss=false (fail_on_data_loss=False); a longer retention "
                "(retention.ms, retention.bytes) keeps it from happening again"
            )
        for loss in losses:
            _log.warning("records are lost and left out, as failOnDataLoss=false allows: %s", loss)


def _offsets(position: Position) -> Offsets:
    return from_json({topic: numbers for topic, numbers in position.items() if topic != _IDS})


def _check_numbers(source: KafkaSource) -> None:
    limits = ("min_partitions", "max_offsets_per_trigger", "max_records_per_partition", "min_records_per_partition")
    for name in limits:
        value = getattr(source, name)
        if value is not None and value < 1:
            raise ConfigurationError(f"{name} ({as_option(name)}) must be 1 or more, not {value}")
    if not 0 < source.timeout < math.inf:
        raise ConfigurationError(f"timeout must be more than 0 s, not {source.timeout}")
