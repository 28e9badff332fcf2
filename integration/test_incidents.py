"""Incidents of a running pipeline: `status` says what is wrong, what it advises helps, and no row is lost."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from . import incidents

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onceward.testing.services import KafkaServer, PostgresServer

PAGE = Path(__file__).parents[1] / "docs" / "operations.md"
ANSWER_SECONDS = 20.0
"""An idle machine takes two. This is for one that runs other tests beside this one."""


@pytest.fixture
def scene(kafka: KafkaServer, postgres: PostgresServer, dsn: str, tmp_path: Path) -> Iterator[incidents.Scene]:
    one = incidents.Scene(kafka, postgres, dsn, tmp_path)
    yield one
    one.end()


def test_the_page_shows_each_incident_as_it_is_played() -> None:
    assert incidents.table() in PAGE.read_text()
    assert all(re.match(each.says, each.shown) for each in incidents.INCIDENTS if each.shown != "the same")


FIRST, *OTHERS = incidents.INCIDENTS
EACH = [pytest.param(FIRST), *(pytest.param(each, marks=pytest.mark.nightly) for each in OTHERS)]


@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.timeout(400)
@pytest.mark.parametrize("incident", EACH, ids=lambda each: each.title.replace("`", "").replace(" ", "-"))
def test_status_names_it_at_once_and_what_it_advises_ends_it(
    scene: incidents.Scene, incident: incidents.Incident
) -> None:
    incident.happens(scene)
    deadline = time.monotonic() + incident.patience
    while True:
        said, code, took = scene.says()
        if re.match(f"({re.escape(scene.name)}|{re.escape(str(scene.store))}): {incident.says}", said):
            break
        assert time.monotonic() < deadline, said
        time.sleep(1)
    assert code == incident.code, said
    assert took < ANSWER_SECONDS
    incident.ends(scene)
    assert scene.is_exact()
