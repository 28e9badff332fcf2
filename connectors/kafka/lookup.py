"""What the brokers hold: topics, partitions, offsets. Asked through librdkafka's admin client.

The last stable offset comes from ListOffsets with the isolation level read_committed (measured on Kafka 4.3: 2 to 6 ms
for any number of partitions in one call, and it stands still at the first open transaction).
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, Final

from onceward.core.errors import SourceError

from .admin import admin_of
from .bounds import EARLIEST, LATEST
from .errors import confluent
from .planning import Held
from .positions import Partition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from .admin import Admin
    from .settings import KafkaSettings

ASK_SECONDS: Final = 10.0
"""Bound of one request."""
FIRST_SECONDS: Final = 9.0
"""For the first answer of a cluster to this process: a wrong address, or a broker that is not up yet, is told soon."""
PAUSE_SECONDS: Final = 0.2
"""Between two tries."""
LEAST_SECONDS: Final = 0.5
"""Bound of one request when hardly any time is left."""


class Lookup:
    """Questions to one cluster.

    Args:
        settings: Where and how to connect.
        committed: Ask for what read_committed readers see.
        retry_seconds: How long a question is asked again while no broker answers. As long as the cluster has never
            answered this process, FIRST_SECONDS at most.
    """

    def __init__(self, settings: KafkaSettings, *, committed: bool, retry_seconds: float) -> None:
        self._settings = settings
        self._committed = committed
        self._retry_seconds = retry_seconds

    def topics_like(self, pattern: str) -> list[str]:
        """Names of the topics that match a regular expression as a whole; internal ones are left out."""
        metadata = self._ask("list topics", lambda admin, seconds: admin.list_topics(timeout=seconds))
        whole = re.compile(pattern)
        return sorted(name for name in metadata.topics if whole.fullmatch(name) and not name.startswith("__"))

    def partitions_of(self, topics: Iterable[str]) -> dict[str, tuple[str, int]]:
        """Id and number of partitions of the topics that exist."""
        names = sorted(set(topics))
        if not names:
            return {}
        found: dict[str, tuple[str, int]] = self._ask(
            f"look up {', '.join(names)}", lambda admin, seconds: _described(admin, names, seconds)
        )
        return found

    def held(self, partitions: Iterable[Partition], position: Mapping[Partition, int]) -> dict[Partition, Held]:
        """First and last offsets of partitions; the end behind open transactions only where a position needs it."""
        wanted = sorted(partitions)
        earliest, stable = self.offsets(dict.fromkeys(wanted, EARLIEST), dict.fromkeys(wanted, LATEST))
        beyond = [p for p in wanted if self._committed and position.get(p, 0) > stable[p]]
        [ends] = self._offsets([dict.fromkeys(beyond, LATEST)], committed=False) if beyond else [{}]
        return {p: Held(earliest[p], stable[p], max(stable[p], ends.get(p, 0))) for p in wanted}

    def offsets(self, *questions: Mapping[Partition, int]) -> list[dict[Partition, int]]:
        """Where EARLIEST and LATEST are now; other numbers are offsets and stay. All questions at once."""
        return self._offsets(questions, committed=self._committed)

    def at_times(self, milliseconds: Mapping[Partition, int]) -> dict[Partition, int]:
        """First offset whose record is not older than the time; LATEST where there is none."""
        spec = confluent_admin().OffsetSpec.for_timestamp
        [found] = self._specs([{p: spec(ms) for p, ms in milliseconds.items()}], committed=self._committed)
        return found

    def _offsets(self, questions: Sequence[Mapping[Partition, int]], *, committed: bool) -> list[dict[Partition, int]]:
        spec = confluent_admin().OffsetSpec
        specs = {EARLIEST: spec.earliest(), LATEST: spec.latest()}
        asked = [{p: specs[o] for p, o in question.items() if o in specs} for question in questions]
        answers = self._specs(asked, committed=committed)
        return [{**question, **answer} for question, answer in zip(questions, answers, strict=True)]

    def _specs(self, questions: Sequence[Mapping[Partition, Any]], *, committed: bool) -> list[dict[Partition, int]]:
        library = confluent()
        level = library.IsolationLevel.READ_COMMITTED if committed else library.IsolationLevel.READ_UNCOMMITTED

        def ask(admin: Any, seconds: float) -> list[dict[Partition, int]]:
            sent = [
                admin.list_offsets(
                    {library.TopicPartition(*p): spec for p, spec in question.items()},
                    isolation_level=level,
                    request_timeout=seconds,
                )
                if question
                else {}
                for question in questions
            ]
            return [{Partition(tp.topic, tp.partition): int(f.result().offset) for tp, f in s.items()} for s in sent]

        answers: list[dict[Partition, int]] = self._ask("ask for offsets", ask)
        return answers

    def _ask(self, what: str, question: Callable[[Any, float], Any]) -> Any:
        """Ask until there is an answer, while the fault may pass."""
        admin = admin_of(self._settings)
        admin.client.poll(0)
        admin.complaints.clear()
        give_up = time.monotonic() + (
            self._retry_seconds if admin.answered else min(self._retry_seconds, FIRST_SECONDS)
        )
        while True:
            seconds = ASK_SECONDS if admin.answered else max(LEAST_SECONDS, give_up - time.monotonic())
            try:
                answer = question(admin.client, seconds)
            except confluent().KafkaException as error:
                self._check(admin, what, error.args[0], last=time.monotonic() >= give_up)
            else:
                admin.answered = True
                return answer
            time.sleep(PAUSE_SECONDS)

    def _check(self, admin: Admin, what: str, error: Any, *, last: bool) -> None:
        """Raise if asking again does not help, or not in time."""
        admin.client.poll(0)
        servers, complaints = self._settings["bootstrap.servers"], admin.complaints
        if complaints.refusal is not None and not admin.answered:
            raise SourceError(f"the brokers at {servers} refuse this client: {complaints.refusal.str()}") from None
        if not passes(error):
            raise SourceError(f"cannot {what} at {servers}: {error.str()}") from None
        if last:
            words = f"no broker answers: {complaints.newest}" if complaints.newest else error.str()
            raise SourceError(f"cannot {what} at {servers}: {words}") from None


def passes(error: Any) -> bool:
    """Whether a fault of librdkafka's may pass by itself."""
    kinds = confluent().KafkaError
    passing = {
        kinds._ALL_BROKERS_DOWN,  # noqa: SLF001 - confluent's names of local faults
        kinds._TRANSPORT,  # noqa: SLF001
        kinds._TIMED_OUT,  # noqa: SLF001
        kinds._RESOLVE,  # noqa: SLF001
        kinds._WAIT_CACHE,  # noqa: SLF001
        kinds.LEADER_NOT_AVAILABLE,
        kinds.NOT_LEADER_FOR_PARTITION,
        kinds.REPLICA_NOT_AVAILABLE,
        kinds.REQUEST_TIMED_OUT,
        kinds.BROKER_NOT_AVAILABLE,
        kinds.NETWORK_EXCEPTION,
        kinds.OFFSET_NOT_AVAILABLE,
        kinds.FENCED_LEADER_EPOCH,
        kinds.UNKNOWN_LEADER_EPOCH,
        kinds.KAFKA_STORAGE_ERROR,
    }
    return bool(error.code() in passing or error.retriable())


def confluent_admin() -> Any:
    """The module confluent_kafka.admin."""
    confluent()
    from confluent_kafka import admin  # noqa: PLC0415 - an extra

    return admin


def _described(admin: Any, names: list[str], seconds: float) -> dict[str, tuple[str, int]]:
    library = confluent()
    futures = admin.describe_topics(library.TopicCollection(names), request_timeout=seconds)
    found = {}
    for name, future in futures.items():
        try:
            topic = future.result()
        except library.KafkaException as error:
            if error.args[0].code() != library.KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
        else:
            found[name] = (str(topic.topic_id), len(topic.partitions))
    return found
