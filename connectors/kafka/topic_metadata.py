"""What the brokers hold of what a source reads: topics, partitions, offsets. Asked through librdkafka's admin client.

The last stable offset comes from ListOffsets with the isolation level read_committed (measured on Kafka 4.3: 2 to 6 ms
for any number of partitions in one call, and it stands still at the first open transaction).
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from onceward.core.errors import ConfigurationError, SourceError, text_of

from .admin import admin_of
from .positions import EARLIEST, LATEST, AtTime, Bound, HeldOffsets, Partition, assignment_from_json, spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from .positions import Offsets
    from .settings import KafkaSettings

T = TypeVar("T")
NO_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
"""The zero UUID: what brokers say that give topics no ids."""
INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Topics that brokers keep for themselves (org.apache.kafka.common.internals.Topic)."""
HEARD_SECONDS: Final = 5.0
"""How long after a partition was made each broker has heard of it: until then one may say that it does not exist."""


class Lookup:
    """Client that looks up topics, partitions and offsets of one cluster.

    Args:
        settings: Where and how to connect.
        committed: Return end offsets as read_committed readers see them.
        retry_seconds: How long a question is asked again while no broker answers. As long as the cluster has never
            answered this process, REACH_SECONDS at most.
    """

    def __init__(self, settings: KafkaSettings, *, committed: bool, retry_seconds: float) -> None:
        self._settings = settings
        self._committed = committed
        self._retry_seconds = retry_seconds

    def topics_like(self, pattern: str) -> list[str]:
        """Return the topics of whose names a regular expression matches a part; Kafka's own topics are left out.

        Spark's own source does the same (SubscribePatternStrategy, Spark 4).
        """
        metadata = self._ask("list topics", lambda admin, seconds: admin.list_topics(timeout=seconds))
        compiled = re.compile(pattern)
        return sorted(name for name in metadata.topics if compiled.search(name) and name not in INTERNAL)

    def partitions_of(self, topics: Iterable[str]) -> dict[str, tuple[str, int]]:
        """Return the id and the number of partitions of each topic that exists."""
        names = sorted(set(topics))
        owners: dict[str, tuple[str, int]] = {}
        if names:
            owners = self._ask(f"look up {', '.join(names)}", lambda admin, s: _described(admin, names, s))
        return owners

    def held(self, partitions: Iterable[Partition], position: Mapping[Partition, int]) -> dict[Partition, HeldOffsets]:
        """Return first and last offsets of partitions; the end behind open transactions where a position needs it."""
        ordered = sorted(partitions)
        earliest, stable = self.offsets(dict.fromkeys(ordered, EARLIEST), dict.fromkeys(ordered, LATEST))
        beyond = {p: LATEST for p in ordered if self._committed and position.get(p, 0) > stable[p]}
        uncommitted = Lookup(self._settings, committed=False, retry_seconds=self._retry_seconds)
        [ends] = uncommitted.offsets(beyond) if beyond else [{}]
        return {p: HeldOffsets(earliest[p], stable[p], max(stable[p], ends.get(p, 0))) for p in ordered}

    def offsets(self, *questions: Mapping[Partition, int]) -> list[Offsets]:
        """Return the offsets of EARLIEST and LATEST now, for all questions together; other numbers stay as they are."""
        spec: Any = OffsetSpec
        specs = {EARLIEST: spec.earliest(), LATEST: spec.latest()}
        requests = [{p: specs[o] for p, o in question.items() if o in specs} for question in questions]
        answers = self._listed(requests)
        return [{**question, **answer} for question, answer in zip(questions, answers, strict=True)]

    def at_times(self, milliseconds: Mapping[Partition, int]) -> Offsets:
        """Return the first offset whose record is not older than the time (ms since 1970); LATEST if there is none."""
        spec = OffsetSpec.for_timestamp
        [offsets] = self._listed([{p: spec(ms) for p, ms in milliseconds.items()}])
        return offsets

    def _listed(self, questions: Sequence[Mapping[Partition, Any]]) -> list[Offsets]:
        level = IsolationLevel.READ_COMMITTED if self._committed else IsolationLevel.READ_UNCOMMITTED

        def sent(admin: Any, question: Mapping[Partition, Any], seconds: float) -> Mapping[Any, Any]:
            specs = {TopicPartition(*partition): spec for partition, spec in question.items()}
            futures: Mapping[Any, Any] = admin.list_offsets(specs, isolation_level=level, request_timeout=seconds)
            return futures

        heard = time.monotonic() + min(HEARD_SECONDS, self._retry_seconds / 2)

        def ask(admin: Any, seconds: float) -> list[Offsets]:
            all_sent = [sent(admin, question, seconds) if question else {} for question in questions]
            try:
                listed = [
                    {Partition(at.topic, at.partition): int(future.result().offset) for at, future in futures.items()}
                    for futures in all_sent
                ]
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART or time.monotonic() > heard:
                    raise
                raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE)) from error  # which may pass
            # While a partition has no leader, librdkafka may say OFFSET_INVALID (-1001) without an error.
            if any(offset < LATEST for offsets in listed for offset in offsets.values()):
                raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
            return listed

        topics = ", ".join(sorted({partition.topic for question in questions for partition in question}))
        return self._ask(f"ask for offsets of {topics}", ask)

    def _ask(self, what: str, question: Callable[[Any, float], T]) -> T:
        return admin_of(self._settings).ask(what, question, self._retry_seconds, SourceError)


def _described(admin: Any, names: list[str], seconds: float) -> dict[str, tuple[str, int]]:
    futures = admin.describe_topics(TopicCollection(names), request_timeout=seconds)
    descriptions = {}
    for name, future in futures.items():
        try:
            topic = future.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
        else:
            id_ = str(topic.topic_id)
            descriptions[name] = ("" if id_ == NO_ID else id_, len(topic.partitions))
    return descriptions


class Selection(msgspec.Struct, frozen=True):
    """The choice of topics or partitions to read: exactly one of these.

    Attributes:
        topics: Names of topics.
        pattern: Regular expression that a topic's whole name matches.
        assign: Partitions.
    """

    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    assign: tuple[Partition, ...] | None = None

    @classmethod
    def of(
        cls, topics: Sequence[str] | None, pattern: str | None, assign: Mapping[str, Sequence[int]] | str | None
    ) -> Selection:
        """Make a selection from a user's options; `assign` may be JSON text.

        Raises:
            ConfigurationError: Not exactly one was given, it is empty, or it is not valid.
        """
        if sum(choice is not None for choice in (topics, pattern, assign)) != 1:
            raise ConfigurationError(
                "select what to read with exactly one of topics (subscribe), pattern (subscribePattern) and assign"
            )
        if assign is not None:
            return cls(assign=assignment_from_json(assign))
        if pattern is not None:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ConfigurationError(
                    f"pattern (subscribePattern) {pattern!r} is not a valid regular expression: {text_of(error)}"
                ) from error
            return cls(pattern=pattern)
        if isinstance(topics, str) or not topics:
            raise ConfigurationError(f"topics (subscribe) must be a list with at least one name, not {topics!r}")
        if not all(name.strip() for name in topics):
            raise ConfigurationError(f"topics (subscribe) has an empty name: {topics}")
        return cls(topics=tuple(sorted(set(topics))))

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"topics like {self.pattern}"
        names = self.topics if self.topics is not None else sorted({partition.topic for partition in self.assign or ()})
        return f"topic{'s' if len(names) > 1 else ''} {', '.join(names)}"

    def takes(self, partition: Partition) -> bool:
        """Return whether the partition belongs to the selection."""
        if self.assign is not None:
            return partition in self.assign
        if self.pattern is not None:
            return re.search(self.pattern, partition.topic) is not None
        return partition.topic in (self.topics or ())


class Found(msgspec.Struct, frozen=True):
    """The partitions of a selection that exist.

    Attributes:
        partitions: Its partitions.
        ids: Ids of their topics: a topic that is deleted and made anew gets another.
        missing: What the selection names and is not there.
    """

    partitions: tuple[Partition, ...]
    ids: dict[str, str]
    missing: tuple[str, ...]


def find(selection: Selection, lookup: Lookup) -> Found:
    """Ask the brokers for the existing partitions of a selection."""
    if selection.pattern is not None:
        names = lookup.topics_like(selection.pattern)
    else:
        names = sorted(selection.topics or {partition.topic for partition in selection.assign or ()})
    described = lookup.partitions_of(names)
    there = [Partition(topic, n) for topic, (_, count) in described.items() for n in range(count)]
    if selection.assign is not None:
        missing = [str(partition) for partition in selection.assign if partition not in there]
        there = [partition for partition in there if partition in selection.assign]
    else:
        missing = [name for name in names if name not in described] if selection.pattern is None else []
    return Found(tuple(sorted(there)), {topic: id_ for topic, (id_, _) in described.items()}, tuple(missing))


def bound_offsets(given: Bound, partitions: Iterable[Partition], lookup: Lookup, *, start: bool) -> Offsets:
    """Return the offsets where reading starts or ends; a time that is later than all records is the end.

    Raises:
        ConfigurationError: Offsets are given, and not for exactly these partitions.
        SourceError: Reading should start at a time that is later than all records of a partition.
    """
    what = ("startingOffsets" if start else "endingOffsets") + ("ByTimestamp" if isinstance(given, AtTime) else "")
    numbers = spread(given, partitions, what)
    if isinstance(given, AtTime):
        offsets = lookup.at_times(numbers)
        late = [str(partition) for partition, offset in sorted(offsets.items()) if offset < 0]
        if start and late and not given.or_latest:
            raise SourceError(
                f"no record of {', '.join(late)} is as new as the starting time: with "
                "startingOffsetsByTimestampStrategy=latest (AtTime(or_latest=True)) reading begins at the end"
            )
        numbers = {partition: max(offset, LATEST) for partition, offset in offsets.items()}
    return lookup.offsets(numbers)[0]
