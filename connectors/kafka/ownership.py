"""What the brokers know under a pipeline's and sink's name: what lingers, and whether another log has used it.

Nothing can be deleted in Kafka: a transactional id is remembered for transactional.id.expiration.ms (7 days) after
its last use. `check_ownership` looks at these ids, and `accept` registers one more, whose name says which log accepts
which other. It lives longer than the ids of the other log, because it is younger.

Whoever asks gets a KafkaError if not every broker answers, or if a coordinator does not describe what was listed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceward.core.contract.ledger import Ledger
from onceward.core.contract.names import (
    FORMAT,
    NOTHING,
    AcceptedName,
    other_log,
    parse_accepted_name,
    parse_pooled_name,
)

from .error_codes import Code, kafka_error, until_answered
from .transaction_state import Prepared, listed_committable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from onceward.core.contract.names import Scope
    from onceward.core.contract.targets import OtherTransaction
    from onceward.core.contract.transaction import Committable, Progress

    from .transaction_coordinator import TransactionCoordinatorClient
    from .transaction_state import Description


class KafkaLedger(Ledger):
    """What the brokers remember of decision logs: who may have committed under a name.

    They do not know how far a log had come, and cannot store a claim. So a log checks until it has decided something
    itself.

    Args:
        client: Makes the client.
        wait_seconds: Seconds for which a start waits for brokers that do not answer.
    """

    def __init__(self, client: Callable[[], TransactionCoordinatorClient], *, wait_seconds: float) -> None:
        self._client = client
        self._wait_seconds = wait_seconds

    def check_claim(self, scope: Scope, newest: Progress) -> None:
        """Refuse a name that another log may have committed under; see Ledger."""
        if newest == NOTHING:
            until_answered(self._wait_seconds, lambda: check_ownership(self._client(), scope))

    def release(self, scope: Scope) -> None:
        until_answered(self._wait_seconds, lambda: accept(self._client(), scope))


def lingering(client: TransactionCoordinatorClient, scope: Scope, topics: Collection[str] | None) -> list[Committable]:
    """Return the open transactions under exactly this pipeline's and sink's name, whatever log they belong to.

    Also those that their coordinator has aborted while some partition of these topics (None: of all that this client
    may see) still has them open, because it had no leader then (KAFKA-20734): they hold readers back like any other,
    and aborting them ends that.
    """
    described = describe_listed(client, _of_sink(client, scope, ["Ongoing", "CompleteAbort"])).values()
    return _committables(client, [*_open(described), *_left_out(client, described, topics)])


def lingering_elsewhere(client: TransactionCoordinatorClient, pipeline: str, log: str) -> list[Committable]:
    """Return the open transactions of exactly this pipeline and log, under any sink's name."""
    scopes = _scopes(client, f"{FORMAT}:{pipeline}:", ["Ongoing"])
    own = [name for name, scope in scopes.items() if (scope.pipeline, scope.log) == (pipeline, log)]
    return _committables(client, _open(describe_listed(client, own).values()))


def open_names(client: TransactionCoordinatorClient) -> set[Scope]:
    """Return onceward's names, of any pipeline, under which a transaction is open."""
    return set(_scopes(client, f"{FORMAT}:", ["Ongoing"]).values())


def open_elsewhere(client: TransactionCoordinatorClient) -> list[OtherTransaction]:
    """Return the open transactions that are not this library's, as far as this client may describe them."""
    from onceward.core.contract.targets import OtherTransaction  # noqa: PLC0415 - what writes needs none of it

    ids = [name for name in client.list_transactions(["Ongoing"]) if parse_pooled_name(name) is None]
    return [
        OtherTransaction(
            prepared.handle.transactional_id,
            producer_words(prepared.producer),
            tuple(f"{topic}-{number}" for topic, number in sorted(prepared.partitions)),
            prepared.handle.started_ms / 1000,
        )
        for prepared in _open(describe_listed(client, ids, visible_only=True).values())
    ]


def producer_words(producer: tuple[int, int]) -> str:
    """Return a producer id and epoch as people look them up."""
    return f"producer {producer[0]}, epoch {producer[1]}"


def sinks_at_brokers(client: TransactionCoordinatorClient, pipeline: str) -> list[str]:
    """Return the names of sinks under which this pipeline has written with any log, as far as the brokers remember."""
    scopes = _scopes(client, f"{FORMAT}:{pipeline}:", []).values()
    return sorted({scope.sink for scope in scopes if scope.pipeline == pipeline})


def describe_listed(
    client: TransactionCoordinatorClient, ids: Iterable[str], *, visible_only: bool = False
) -> dict[str, Description]:
    """Describe transactional ids that were listed; what is forgotten by now is no error.

    With `visible_only`, neither is what this client may not describe.

    Raises:
        KafkaError: A coordinator does not answer, or may not.
    """
    described = client.describe(ids)
    for name, description in described.items():
        if description.code in (Code.NONE, Code.TRANSACTIONAL_ID_NOT_FOUND):
            continue
        if not (visible_only and description.code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED):
            raise kafka_error("cannot describe a transaction that was listed", description.code, transaction=name)
    return described


def _open(described: Iterable[Description]) -> list[Prepared]:
    return [description.open for description in described if description.open is not None]


def _committables(client: TransactionCoordinatorClient, transactions: Collection[Prepared]) -> list[Committable]:
    ids = client.topic_ids({topic for prepared in transactions for topic in prepared.topics})
    committables = (listed_committable(prepared.with_ids(ids)) for prepared in transactions)
    return [committable for committable in committables if committable is not None]


def _left_out(
    client: TransactionCoordinatorClient, described: Iterable[Description], topics: Collection[str] | None
) -> Iterable[Prepared]:
    """Return aborted transactions that a partition still has open; the broker's timeout or a fence raised the epoch."""
    aborted = [d.handle for d in described if d.state == "CompleteAbort" and d.handle is not None]
    if not aborted:
        return
    # Of all topics, some may not be read: nobody waits for these.
    producers = client.describe_producers(client.partitions_of(topics), retry_seconds=0 if topics is None else None)
    for handle in aborted:
        for epoch in (handle.producer_epoch, handle.producer_epoch - 1):
            identity = (handle.producer_id, epoch)
            where = frozenset(at for at, open_ in producers.items() if open_ is not None and identity in open_)
            if where:
                yield Prepared(handle._replace(producer_epoch=epoch), where)


def check_ownership(client: TransactionCoordinatorClient, scope: Scope) -> None:
    """Refuse a pipeline under whose name another log may have committed something, whatever its sink was called.

    Raises:
        EpochConflictError: It may have.
        KafkaError: Not every broker answered for all that it knows.
    """
    others, accepted = _other_logs(client, scope), _accepted(client, scope)
    for sink, logs in sorted(others.items(), key=lambda item: (item[0] != scope.sink, item[0])):
        if logs - accepted:
            raise other_log(scope, ", ".join(sorted(logs - accepted)), "Kafka", sink=sink)


def accept(client: TransactionCoordinatorClient, scope: Scope) -> None:
    """Let this log use the name although other logs have; the brokers remember that."""
    for log in set().union(*_other_logs(client, scope).values()) - _accepted(client, scope):
        name = str(AcceptedName(scope, log))
        code = client.register(name)
        if code != Code.NONE:
            raise kafka_error("cannot remember that another log's data are accepted", code, transaction=name)


def _other_logs(client: TransactionCoordinatorClient, scope: Scope) -> dict[str, set[str]]:
    """Return, by sink, the other logs that may have committed something under the pipeline's name."""
    scopes = _scopes(client, f"{FORMAT}:{scope.pipeline}:", [])
    foreign = {name: of for name, of in scopes.items() if of.pipeline == scope.pipeline and of.log != scope.log}
    others: dict[str, set[str]] = {}
    for name, description in describe_listed(client, foreign).items():
        if not never_committed(description):
            others.setdefault(foreign[name].sink, set()).add(foreign[name].log)
    return others


def never_committed(description: Description) -> bool:
    """Return whether no transaction of this id was ever committed: its producer epoch shows that it had only one.

    A first transaction that was aborted by its timeout or by a fence has raised the epoch to one. A second transaction
    never has epoch one: the pool raises the epoch twice before it.
    """
    if description.handle is None:
        return description.code == Code.TRANSACTIONAL_ID_NOT_FOUND
    epoch, state = description.handle.producer_epoch, description.state
    return (epoch == 0 and state in {"Empty", "Ongoing"}) or (epoch <= 1 and state in {"PrepareAbort", "CompleteAbort"})


def _accepted(client: TransactionCoordinatorClient, scope: Scope) -> set[str]:
    names = map(parse_accepted_name, client.list_transactions(prefix=AcceptedName.head(scope)))
    return {name.other for name in names if name is not None and name.scope == scope}


def _of_sink(client: TransactionCoordinatorClient, scope: Scope, states: Collection[str] = ()) -> dict[str, Scope]:
    """Return the transactional ids of exactly this sink of this pipeline, with any log, and their scopes."""
    scopes = _scopes(client, f"{scope.head}:", states)
    return {name: of for name, of in scopes.items() if of.is_sink(scope.pipeline, scope.sink)}


def _scopes(client: TransactionCoordinatorClient, prefix: str, states: Collection[str]) -> dict[str, Scope]:
    """Return the transactional ids of this library's sinks that begin with `prefix`, and their scopes."""
    names = {text: parse_pooled_name(text) for text in client.list_transactions(states, prefix=prefix)}
    return {text: name.scope for text, name in names.items() if name is not None}
