"""The local page in a real browser: what it shows is text, its actions ask first, and it works without a mouse."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.ui_kit import TOKEN, Folder

from onceward.core.log import DirectoryStore, read
from onceward.core.log.notes import note

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: install Debian's package `chromium`")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("ui_jobs", None)
    return Folder(tmp_path)


@contextlib.contextmanager
def served(folder: Folder) -> Iterator[str]:
    import uvicorn

    from onceward.cli.ui.web import make_app

    listening = socket.create_server(("127.0.0.1", 0))
    app = make_app(folder.desk(), TOKEN)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, ws="none"))
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
        assert page.title() == "orders · onceward"
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, "a phone has to scroll sideways"

        page.get_by_role("button", name="Ask the targets").press("Enter")
        page.get_by_label(f"Select {doubtful}").press("Space")
        assert page.get_by_role("button", name="Abort 1").is_visible()
        page.get_by_role("button", name="Commit epoch 3").press("Enter")
        confirm = page.get_by_role("dialog").get_by_role("button", name="Commit")
        assert confirm.is_disabled()
        page.keyboard.type("orders")  # the focus is in the field
        page.keyboard.press("Enter")
        page.get_by_text("Epoch 3 is completed: 1 transactions are committed").wait_for()
        assert read(store).completed == 3

        page.get_by_role("button", name="Abort 1").press("Enter")
        page.keyboard.press("Escape")
        page.get_by_role("dialog").wait_for(state="hidden")
        folder.case.start()
        folder.finish(4)  # a change of the files appears by itself
        page.get_by_role("button", name="Show the life of 4").wait_for()
        assert trouble == []


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


def test_the_command_serves_its_page_until_it_is_stopped(folder: Folder) -> None:
    import signal
    import subprocess
    import urllib.request

    folder.finish(0)
    command = [
        sys.executable,
        "-c",
        "from onceward.cli.main import main; main()",
        "ui",
        "--store",
        str(folder.checkpoints),
        "--port",
        "0",
    ]
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("1 pipelines. Open http://127.0.0.1:")
        url, _, token = line.split()[-1].partition("#token=")
        asked = urllib.request.Request(f"{url}api/state", headers={"x-onceward-token": token})
        assert b'"orders"' in urllib.request.urlopen(asked, timeout=10).read()
        process.send_signal(signal.SIGINT)
        assert process.wait(10) in {0, 130}
    assert time.monotonic() - began < 60
