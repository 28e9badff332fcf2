"""Admin without a broker: what is asked again, and by whom."""

import confluent_kafka
import pytest

from onceward.connectors.kafka.admin import Admin
from onceward.connectors.kafka.settings import KafkaSettings


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
