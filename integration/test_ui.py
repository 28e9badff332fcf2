"""The local page in a real browser: what it shows is text, its actions ask first, and it works without a mouse.

And the command that serves it, beside a query that runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from tests.ui_kit import TOKEN, Folder

from onceward import FileSink, exactly_once
from onceward.core.log import DirectoryStore, read
from onceward.core.log.notes import note

from .kafka_kit import eventually
from .spark_kit import Feed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("ui_jobs", None)
    return Folder(tmp_path)


@contextlib.contextmanager
def served(folder: Folder) -> Iterator[str]:
    from onceward.cli.ui.server import PageServer
    from onceward.cli.ui.web import make_app

    listening = socket.create_server(("127.0.0.1", 0))
    server = PageServer(make_app(folder.desk(), TOKEN))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


@pytest.fixture
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium: install Debian's package `chromium`")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.getuid() == 0 else []
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield made
        made.close()


def test_an_operator_commits_by_keyboard_and_hostile_names_stay_text(folder: Folder, browser: Any) -> None:
    for epoch in range(3):
        folder.finish(epoch)
    doubtful = folder.case.prepare(3, subtask=4).transaction
    folder.die_after_deciding(3)
    store = DirectoryStore(folder.orders / "onceward")
    note(store, "epoch", {"epoch": 900, "sinks": {EVIL: 1}, "rows": 1, "transactions": 1, "milliseconds": 1})
    note(store, "start", {"finished": [EVIL], "aborted": [EVIL], "milliseconds": 1})
    with served(folder) as url:
        page = browser.new_page(viewport={"width": 390, "height": 844})
        trouble: list[str] = []
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("console", lambda line: trouble.append(line.text) if line.type == "error" else None)

        page.goto(url)  # without the token there is nothing to see
        page.get_by_label("Token").wait_for()
        assert page.get_by_text("orders").count() == 0
        page.goto(f"{url}#token={TOKEN}")
        page.get_by_role("heading", name="orders").wait_for()
        assert TOKEN not in page.url
        assert page.get_by_text(EVIL).count() >= 2
        assert page.locator("main img, main script").count() == 0
        assert page.title() == "orders running · onceward"
        sideways = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.evaluate(sideways) <= 0, "a phone has to scroll sideways"

        page.get_by_role("button", name="Ask the targets").press("Enter")
        page.get_by_text("open, prepared or waiting transaction").first.wait_for()
        focused = page.evaluate("document.activeElement.textContent")
        assert focused == "Ask the targets", "the focus is lost, so the next key goes nowhere"
        assert "transaction" in page.locator("#said").inner_text(), "a screen reader does not read the answer"
        page.get_by_label(f"Select {doubtful}").press("Space")
        addresses = "(nodes) => { for (const node of nodes) node.textContent = 'postgresql+psycopg:'.repeat(5) }"
        page.locator("main p.small, .found .small").evaluate_all(addresses)
        assert page.evaluate(sideways) <= 0, "a phone has to scroll sideways to read where a transaction is"
        assert page.get_by_role("button", name="Abort 1").is_visible()
        page.get_by_role("button", name="Commit epoch 3").press("Enter")
        confirm = page.get_by_role("dialog").get_by_role("button", name="Commit")
        assert confirm.is_disabled()
        page.keyboard.type("orders")  # the focus is in the field
        page.keyboard.press("Enter")
        page.locator(".note.good", has_text="Epoch 3 is completed; committed transactions: 1").wait_for()
        assert read(store).completed == 3

        page.get_by_role("button", name="Abort 1").press("Enter")
        page.keyboard.press("Escape")
        page.get_by_role("dialog").wait_for(state="hidden")
        folder.case.start()
        folder.finish(4)  # a change of the files appears by itself
        page.get_by_role("button", name="Show the life of 4").wait_for()
        assert trouble == []


def test_the_pipeline_that_needs_somebody_comes_first_and_what_is_selected_stays(folder: Folder, browser: Any) -> None:
    folder.finish(0)
    folder.run_engine()
    store = DirectoryStore(folder.checkpoints / "totals" / "log")
    note(store, "failure", {"epoch": 1, "error": "no such table: sums"})
    with served(folder) as url:
        page = browser.new_page()
        page.goto(f"{url}#token={TOKEN}")
        page.get_by_role("heading", name="totals").wait_for()
        assert page.locator("nav a strong").all_inner_texts() == ["totals", "orders"]
        assert page.title() == "(1) totals failed · onceward"
        assert page.locator("#icon").get_attribute("href") == "/static/icon-need.svg"
        assert page.get_by_text("1 pipeline of 2 needs somebody").is_visible()
        assert page.get_by_text("The last run failed: no such table: sums.").is_visible()
        shown = page.get_by_label("Command").inner_text()
        assert shown == f"onceward doctor --store {folder.checkpoints / 'totals' / 'log'}"
        select = "(node) => getSelection().selectAllChildren(node)"
        page.get_by_label("Command").evaluate(select)
        folder.finish(1)  # the page gets another state meanwhile
        page.wait_for_timeout(5000)
        assert page.evaluate("getSelection().toString()") == shown
        page.evaluate("getSelection().removeAllRanges()")
        page.locator("nav a", has_text="orders").click()
        page.get_by_role("button", name="Show the life of 1").wait_for()
        assert page.get_by_role("heading", name="orders").is_visible()


def test_the_time_that_is_left_is_beside_the_button_that_commits(folder: Folder, browser: Any) -> None:
    folder.finish(0)
    folder.die_after_deciding(1)
    with served(folder) as url:
        page = browser.new_page()

        def expiring(route: Any) -> None:  # files do not expire, as transactions of Kafka do
            answer = route.fetch()
            told = answer.json()
            for one in told["done"]["transactions"]:
                one["expires_in"] = 702
            route.fulfill(response=answer, json=told)

        page.route("**/api/look", expiring)
        page.goto(f"{url}#token={TOKEN}")
        page.get_by_role("button", name="Commit epoch 1").wait_for()
        assert page.locator(".clock").count() == 0
        page.get_by_role("button", name="Ask the targets").click()
        page.locator(".clock").wait_for()

        def left(selector: str) -> int:
            minutes, seconds = page.locator(selector).first.inner_text().removesuffix(" min").split(":")
            return 60 * int(minutes) + int(seconds)

        before = left(".clock")
        assert 690 < before <= 702
        assert abs(left(".found [data-until]") - before) <= 2
        page.wait_for_timeout(2500)
        assert left(".clock") < before, "the clock stands still"


def test_every_control_has_a_name_and_both_themes_are_readable(folder: Folder, browser: Any) -> None:
    folder.finish(0)
    folder.die_after_deciding(1)
    with served(folder) as url:
        for scheme in ("light", "dark"):
            context = browser.new_context(color_scheme=scheme)
            page = context.new_page()
            page.goto(f"{url}#token={TOKEN}")
            page.get_by_role("button", name="Ask the targets").wait_for()
            unnamed = "[...document.querySelectorAll('button, a, input')].filter((n) => !(n.getAttribute('aria-label')"
            unnamed += " || n.textContent.trim() || n.labels?.[0]?.textContent) && n.checkVisibility()).length"
            assert page.evaluate(unnamed) == 0
            for landmark in ("main", "navigation", "banner"):
                assert page.get_by_role(landmark).count() == 1
            assert contrast(page, ".soft") >= 4.5
            assert contrast(page, ".note.warn, .pill.warn") >= 4.5
            context.close()


def contrast(page: Any, selector: str) -> float:
    """Of an element's text with what is behind it, after WCAG 2.2."""
    script = """(selector) => {
      let node = document.querySelector(`main ${selector}`) ?? document.querySelector(selector);
      const ink = getComputedStyle(node).color;
      const clear = (n) => getComputedStyle(n).backgroundColor === 'rgba(0, 0, 0, 0)';
      while (node.parentElement && clear(node)) node = node.parentElement;
      return [ink, getComputedStyle(node).backgroundColor];
    }"""
    first, second = sorted(map(luminance, page.evaluate(script, selector)))
    return (second + 0.05) / (first + 0.05)


def luminance(color: str) -> float:
    parts = [float(part) / 255 for part in color[color.index("(") + 1 : -1].split(",")[:3]]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@contextlib.contextmanager
def command(store: Path) -> Iterator[tuple[subprocess.Popen[str], Callable[[], dict[str, Any]]]]:
    """`onceward ui` as a process, and its first pipeline as a page asks for it."""
    main = "from onceward.cli.main import main; main()"
    arguments = [sys.executable, "-c", main, "ui", "--store", str(store), "--port", "0"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("1 pipeline. Open http://127.0.0.1:")
        url, _, token = line.split()[-1].partition("#token=")

        def parts(path: str) -> dict[str, Any]:
            asked = urllib.request.Request(f"{url}api/{path}", headers={"x-onceward-token": token})
            read: dict[str, Any] = json.loads(urllib.request.urlopen(asked, timeout=10).read())["parts"]
            return read

        def state() -> dict[str, Any]:
            found = parts(f"pipelines/{parts('state')['']['order'][0]}")
            return {**found[""]["pipeline"], "epochs": [found[epoch] for epoch in found[""]["order"]]}

        try:
            yield process, state
        finally:
            process.kill()


def test_the_command_serves_its_page_until_it_is_stopped(folder: Folder) -> None:
    folder.finish(0)
    began = time.monotonic()
    with command(folder.checkpoints) as (process, state):
        assert state()["name"] == "orders"
        process.send_signal(signal.SIGINT)
        assert process.wait(10) in {0, 130}
    assert time.monotonic() - began < 60


@pytest.mark.spark
def test_epochs_of_a_query_that_runs_are_on_the_page(spark: SparkSession, tmp_path: Path) -> None:
    feed, checkpoint = Feed(tmp_path), tmp_path / "checkpoints" / "live"
    feed.add(20)
    writer = exactly_once(
        feed.stream(spark),
        FileSink("all", tmp_path / "all"),
        FileSink("few", tmp_path / "few", where="id < 5"),
        checkpoint=str(checkpoint),
        pipeline="live",
    )
    query = writer.trigger(processingTime="100 milliseconds").start()
    try:
        eventually((checkpoint / "commits" / "0").exists, "the first epoch")
        with command(checkpoint.parent) as (_, state):

            def completed() -> dict[int, dict[str, Any]]:
                return {epoch["epoch"]: epoch for epoch in state()["epochs"] if epoch["logged"]}

            assert completed()[0]["sinks"] == {"all": 20, "few": 5}
            feed.add(20)
            eventually(lambda: 1 in completed(), "an epoch that ends while the page is open")
            epoch = completed()[1]
    finally:
        query.stop()
    assert (epoch["status"], epoch["rows"], epoch["sinks"]) == ("completed", 20, {"all": 20, "few": 0})
    assert {step["state"] for step in epoch["steps"]} == {"done"}
    times = [step["at"] for step in epoch["steps"] if step["at"]]
    assert times == sorted(times)
    assert len(times) == 5
