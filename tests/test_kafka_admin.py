"""Admin without a broker: what is asked again, and by whom."""

import gc
import time
from pathlib import Path

import confluent_kafka
import pytest

from onceward.connectors.kafka.admin import Admin
from onceward.connectors.kafka.settings import KafkaSettings
from onceward.core.errors import ConfigurationError, KafkaError


class Coordinator:
    """Raises these errors, one a call, and then answers; remembers its clients."""

    def __init__(self, *errors: int) -> None:
        self.errors = list(errors)
        self.clients: list[object] = []

    def __call__(self, client: object) -> str:
        self.clients.append(client)
        if self.errors:
            raise confluent_kafka.KafkaException(confluent_kafka.KafkaError(self.errors.pop(0)))
        return "answer"


class Stuck:
    """A question that this client never gets an answer to, and any other one the n-th time that it is asked."""

    def __init__(self, client: object, *, others: int = 1) -> None:
        self.client, self.others, self.asked = client, others, 0

    def __call__(self, client: object, _: float) -> str:
        self.asked += 1
        if client is not self.client:
            self.others -= 1
        if client is self.client or self.others > 0:
            raise confluent_kafka.KafkaException(confluent_kafka.KafkaError(TIMED_OUT))
        return "answer"


TIMED_OUT, FORBIDDEN = confluent_kafka.KafkaError._TIMED_OUT, confluent_kafka.KafkaError.GROUP_AUTHORIZATION_FAILED


def test_a_coordinator_that_does_not_answer_is_asked_by_a_new_client() -> None:
    admin, coordinator = Admin(KafkaSettings("127.0.0.1:1")), Coordinator(TIMED_OUT)
    assert admin.ask_coordinator(coordinator) == "answer"
    old, new = coordinator.clients
    assert old is not new
    assert admin.client is new


@pytest.mark.parametrize("errors", [(FORBIDDEN,), (TIMED_OUT, TIMED_OUT)])
def test_a_refusal_is_not_asked_about_again_and_nobody_asks_three_times(errors: tuple[int, ...]) -> None:
    coordinator = Coordinator(*errors)
    with pytest.raises(confluent_kafka.KafkaException):
        Admin(KafkaSettings("127.0.0.1:1")).ask_coordinator(coordinator)
    assert len(coordinator.clients) == len(errors)


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Admin:
    """An Admin whose cluster has answered before."""
    monkeypatch.setattr("onceward.connectors.kafka.admin.ATTEMPT_SECONDS", 0.01)
    admin = Admin(KafkaSettings("127.0.0.1:1"))
    admin.answered = True
    return admin


@pytest.mark.parametrize("others", [1, 2])
def test_a_client_that_gets_no_answer_any_more_is_replaced_by_one_that_does(answered: Admin, others: int) -> None:
    stuck = Stuck(answered.client, others=others)
    assert answered.ask("look", stuck, 30.0) == "answer"
    assert stuck.asked == 2 * others
    assert answered.ask("look", stuck, 0.0) == "answer"


def test_a_client_that_got_no_answer_is_replaced_in_the_next_call_if_there_was_no_time(answered: Admin) -> None:
    stuck = Stuck(answered.client)
    with pytest.raises(KafkaError, match="cannot look"):
        answered.ask("look", stuck, 0.0)
    assert answered.ask("look", stuck, 0.0) == "answer"


def test_where_no_new_client_can_be_made_the_kept_one_is_asked_again(
    answered: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = Coordinator(TIMED_OUT)

    def refused(*_: object, **__: object) -> None:
        raise ConfigurationError("no token")

    monkeypatch.setattr("onceward.connectors.kafka.admin.make_client", refused)
    assert answered.ask("look", lambda client, _: errors(client), 30.0) == "answer"
    assert errors.clients == [answered.client, answered.client]


def test_questions_without_an_answer_leave_no_clients_behind(answered: Admin) -> None:
    """confluent-kafka keeps what is raised while another of its errors is handled, and with it the frames' clients."""

    def question(_: object, __: float) -> str:
        raise confluent_kafka.KafkaException(confluent_kafka.KafkaError(TIMED_OUT))

    def threads() -> int:
        gc.collect()
        return len(list(Path("/proc/self/task").iterdir()))

    before = threads()
    for _ in range(6):
        with pytest.raises(KafkaError):
            answered.ask("look", question, 0.0)
    deadline = time.monotonic() + 20
    while threads() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert threads() <= before


def test_a_client_that_has_an_answer_after_a_new_one_had_none_is_kept(answered: Admin) -> None:
    old, errors = answered.client, Coordinator(TIMED_OUT, TIMED_OUT)
    assert answered.ask("look", lambda client, _: errors(client), 30.0) == "answer"
    assert [client is old for client in errors.clients] == [True, False, True]
    assert answered.client is old


def test_a_broker_that_is_fenced_while_it_is_asked_is_asked_again(answered: Admin) -> None:
    errors = Coordinator(confluent_kafka.KafkaError._DESTROY_BROKER)
    assert answered.ask("look", lambda client, _: errors(client), 30.0) == "answer"


@pytest.mark.parametrize("seconds", [0.0, 3.0, 8.0])
@pytest.mark.parametrize("known", [False, True])
def test_no_try_takes_all_the_time_and_the_last_one_ends_in_time(
    answered: Admin, monkeypatch: pytest.MonkeyPatch, seconds: float, known: bool
) -> None:
    """A question to librdkafka goes to one broker; the next try may go to another one."""
    clock, bounds = [0.0], list[float]()
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda pause: clock.__setitem__(0, clock[0] + pause))
    answered.answered = known

    def question(_: object, within: float) -> str:
        bounds.append(within)
        clock[0] += within
        raise confluent_kafka.KafkaException(confluent_kafka.KafkaError(TIMED_OUT))

    with pytest.raises(KafkaError, match="cannot look"):
        answered.ask("look", question, seconds)
    assert clock[0] <= seconds + 2.5 + 0.5
    assert seconds < 3 or bounds[0] < seconds
    assert len(bounds) >= (2 if seconds else 1)
