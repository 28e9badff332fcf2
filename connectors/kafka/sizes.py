"""How large the messages and batches of a producer may be, and what limits them.

librdkafka collects up to 1 MB in a batch, and takes a broker's refusal of a batch for a refusal of each message in it,
which ends the transaction. Java's producer splits such a batch and sends the parts (KIP-126). So here:

1. A batch of several messages is never larger than any topic of the transaction takes, as far as that is known.
   librdkafka counts a message with the largest frame that it can have, uncompressed, and each batch has at least one.
   Only a single message can be larger than `batch.size`.
2. What a topic takes is read when the topic is first written to, from every broker (brokers may differ in the default),
   and again after a refusal, because it may have changed.
3. A refused batch is no refused message (rule Y). The transaction is begun again with smaller batches, in the end with
   one message in each. A message is refused only if it was alone in its batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .settings import KafkaSettings

DEFAULT_BATCH: Final = 1_000_000
"""librdkafka's default of batch.size."""
DEFAULT_MESSAGE: Final = 1_000_000
"""librdkafka's default of message.max.bytes."""
SMALL_BATCH: Final = 16_384
"""Java's default of batch.size, which hardly any topic refuses."""
LEAST_LIMIT: Final = 1_000
MOST_LIMIT: Final = 1_000_000_000
"""librdkafka's bounds of message.max.bytes."""
LEAST_FRAME: Final = 36
"""Bytes that librdkafka counts for a message besides key, value and headers."""


class Sizes(NamedTuple):
    """Bounds of one producer's batches and messages, in bytes."""

    batch: int = DEFAULT_BATCH
    """Largest batch of several messages."""
    message: int = DEFAULT_MESSAGE
    """Largest message that librdkafka accepts."""
    single: bool = False
    """Whether each message is sent in a batch of its own."""
    limit: int | None = None
    """The smallest max.message.bytes of the topics; None if it is not known."""
    own: bool = False
    """Whether message.max.bytes is the user's setting."""

    @classmethod
    def of(cls, settings: KafkaSettings, limits: Mapping[str, int | None]) -> Sizes:
        """Choose the sizes for topics that take batches of at most `limits` bytes (None: not known)."""
        known = [min(limit, MOST_LIMIT) for limit in limits.values() if limit is not None]
        own = _number(settings.get("message.max.bytes"))
        batch = min([_number(settings.get("batch.size")) or DEFAULT_BATCH, *known])
        largest = max([DEFAULT_MESSAGE, *known]) if own is None else own
        return cls(max(1, batch), largest, limit=min(known, default=None), own=own is not None)

    def smaller(self) -> Sizes:
        """Return the sizes to try after a batch of several messages was refused."""
        return self._replace(batch=SMALL_BATCH) if self.batch > SMALL_BATCH else self._replace(single=True)

    def within(self, other: Sizes) -> Sizes:
        """Return these sizes, with batches that are no larger than those of `other`."""
        return self._replace(batch=min(self.batch, other.batch), single=self.single or other.single)

    def for_librdkafka(self) -> dict[str, int]:
        """Return the settings of a producer."""
        return {
            "batch.size": self.batch,
            "message.max.bytes": self.message,
            **({"batch.num.messages": 1} if self.single else {}),
        }

    def alone(self, size: int) -> bool:
        """Return whether a message with a key and value of `size` bytes cannot have shared its batch with another."""
        return self.single or size + 2 * LEAST_FRAME > self.batch

    @property
    def advice(self) -> str:
        """What limits a message, and how to raise it."""
        if self.own and (self.limit is None or self.message <= self.limit):
            what = f"It is larger than this client accepts (message.max.bytes={self.message}, set as option "
            return f"{what}kafka.message.max.bytes or in config)"
        if self.limit is None:
            return (
                "It is larger than max.message.bytes of the topic (or message.max.bytes of the brokers), which this "
                "client may not read: grant DescribeConfigs on the topic to see the number"
            )
        return (
            f"The topic takes at most {self.limit} bytes (its max.message.bytes, or message.max.bytes of the brokers)"
        )

    @property
    def advice_here(self) -> str:
        """The advice for a message that this client itself has refused."""
        if self.own:
            return self.advice
        return (
            f"{self.advice}. This client takes at most message.max.bytes={self.message} before compression: if the "
            "message becomes small enough by compression.type, raise it (option kafka.message.max.bytes, or config)"
        )


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:  # which librdkafka itself refuses
        return None
