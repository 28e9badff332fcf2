"""What is found under a pipeline's names: exactly its own, never what only begins alike (invariant 9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from onceward.connectors.kafka import claims
from onceward.connectors.kafka.answers import Description, Listing
from onceward.connectors.kafka.handle import Handle
from onceward.core.errors import EpochConflictError
from onceward.core.names import PooledName, Scope

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

MINE = Scope("orders", "out", "0123abcd")
OTHERS = [
    MINE._replace(pipeline="orders-eu"),
    MINE._replace(pipeline="order"),
    MINE._replace(sink="out2"),
    MINE._replace(sink="ou"),
]
OTHER_LOG = MINE._replace(log="9999aaaa")


class Client:
    """A broker that lists whatever begins alike, and what else it likes."""

    def __init__(self, *scopes: Scope, state: str = "Ongoing", epoch: int = 0) -> None:
        self.names = [str(PooledName(scope, "ffff", n, n or None)) for n, scope in enumerate(scopes)]
        self.names += ["orders", "onceward:1:orders:out", "onceward:1:orders:out:0123abcd:ffff:00"]
        self.state, self.epoch = state, epoch
        self.registered: list[str] = []

    def list_transactions(self, states: Collection[str] = (), *, prefix: str = "") -> list[Listing]:
        assert not states or self.state in states
        kept = [name for name in self.registered if name.startswith(prefix)]
        return [Listing(name, 7, self.state) for name in kept or self.names]

    def describe(self, names: Iterable[str]) -> dict[str, Description]:
        where = frozenset({("t", 0)})
        return {name: Description(0, self.state, Handle(name, 7, self.epoch, 1), 60_000, where) for name in names}

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        return {topic: f"id-of-{topic}" for topic in topics}

    def register(self, name: str) -> int:
        self.registered.append(name)
        return 0


def test_only_what_carries_exactly_this_pipelines_and_sinks_name_lingers():
    client: Any = Client(*OTHERS, MINE, OTHER_LOG)
    found = claims.lingering(client, MINE)
    assert [(c.pipeline, c.sink, c.log) for c in found] == [MINE, OTHER_LOG]
    assert found[0].handle["topic_ids"] == {"t": "id-of-t"}


def test_what_a_pipeline_left_elsewhere_is_of_its_log_and_of_any_sink():
    client: Any = Client(*OTHERS, MINE, OTHER_LOG)
    found = claims.lingering_elsewhere(client, MINE.pipeline, MINE.log)
    assert sorted(c.sink for c in found) == ["ou", "out", "out2"]
    assert {(c.pipeline, c.log) for c in found} == {(MINE.pipeline, MINE.log)}


def test_another_logs_commits_under_the_name_are_refused_until_they_are_accepted():
    client: Any = Client(*OTHERS, OTHER_LOG, state="CompleteCommit")
    with pytest.raises(EpochConflictError, match=r'Kafka knows .*9999aaaa.*rewind="'):
        claims.check(client, MINE)
    claims.accept(client, MINE)
    claims.check(client, MINE)


@pytest.mark.parametrize("client", [Client(*OTHERS, MINE, state="CompleteCommit"), Client(OTHER_LOG)])
def test_a_name_that_no_other_log_has_committed_under_is_free(client: Any):
    claims.check(client, MINE)
