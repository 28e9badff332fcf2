"""What the command line and its page say of targets that need passwords, and of such that refuse them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import psycopg

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PROGRAM = [sys.executable, "-c", "from onceward.cli.main import main; main()"]
JOBS = """
import json, sys
from pathlib import Path
sys.path.insert(0, {here!r})
from secrets_driver import make_pipeline, make_sinks
given = json.loads(Path({settings!r}).read_text())
SINKS = make_sinks(given["sinks"])
def query():
    return make_pipeline("secrets-engine", {log!r}, {state!r}, given["sinks"])
def refused():
    sinks = {{name.replace(" ", "-"): settings for name, settings in given["refused"].items()}}
    return [make_pipeline("secrets-refused", {log!r}, {state!r}, {{name: one}}) for name, one in sinks.items()]
"""


@dataclass(frozen=True)
class Commands:
    """Runs the command line beside what a run left behind.

    Args:
        folder: Where the run has its log.
        elsewhere: A folder of the user's own, which may hold passwords.
        given: The settings of the run.
        environment: Of its processes.
    """

    folder: Path
    elsewhere: Path
    given: Mapping[str, Any]
    environment: Mapping[str, str]

    def said(self) -> dict[str, str]:
        """What each command printed, and each page showed."""
        settings = self.elsewhere / "settings.json"
        settings.write_text(json.dumps(self.given))
        where = {"log": str(self.folder / "log"), "state": str(self.folder / "state")}
        jobs = JOBS.format(here=str(Path(__file__).parent), settings=str(settings), **where)
        (self.elsewhere / "jobs.py").write_text(jobs)
        with ThreadPoolExecutor(4) as pool:
            told = pool.map(lambda one: self._run(*one), self._lines())
            pages = [self.page("the pipeline's", *self._in_file("kafka", "postgres"), *self._log())]
        bucket = ["--store", self.given["bucket"], "--pipeline=secrets-bucket"]
        pages.append(self.page("refused", *self._in_file("kafka refused", "postgres"), *bucket))
        return dict(told) | {name: text for page in pages for name, text in page.items()}

    def _lines(self) -> list[tuple[str, set[int], list[str]]]:
        """Name, exit codes that may be, arguments."""
        where, log, bucket = self._in_file("kafka", "postgres"), self._log(), self.given["bucket"]
        targets = ["--target=postgres=postgres:words", "--target=kafka=kafka:words"]
        refused, malformed = self.given["refused"], self.given["malformed"]
        address = refused["postgres"]["dsn"]
        wrong = ["--at", f"postgres={address}"]
        stores = {name: ["--store", url] for name, (url, _) in self.given["refused_stores"].items()}
        done, failed, misused = {0, 1}, {1, 2}, {2}
        return [
            ("doctor", done, ["doctor", *where, "--place=kafka:words", *log, "--query=jobs.py:query", "--json"]),
            ("doctor in words", done, ["doctor", *where, "--place=kafka:words", *log]),
            ("doctor of the bucket", done, ["doctor", "--store", bucket, "--pipeline=secrets-bucket", "--json"]),
            (
                "doctor refused",
                failed,
                ["doctor", *self._in_file("kafka refused"), *wrong, "--place=kafka:words", *log, "--json"],
            ),
            ("list", done, ["txn", "list", *where, "--sinks=jobs:SINKS", *log, "--json"]),
            ("inspect", misused, ["txn", "inspect", *where, *log, "no-such-transaction"]),
            ("list refused", failed, ["txn", "list", *wrong, *log, "--json"]),
            ("list refused by Kafka", failed, ["txn", "list", *self._in_file("kafka refused"), *log]),
            (
                "list, wrong setting",
                misused,
                ["txn", "list", *self._in_file("kafka"), "--set", "kafka:wrong-geheim", *log],
            ),
            ("checkpoints", done, ["checkpoints", *log, "--json"]),
            ("checkpoints of the bucket", done, ["checkpoints", "--store", bucket, "--pipeline=secrets-bucket"]),
            *(
                (f"checkpoints, {name}", failed, ["checkpoints", *store, "--pipeline=p"])
                for name, store in stores.items()
            ),
            ("explain", done, ["explain", "jobs.py:query", "--json"]),
            ("explain in words", done, ["explain", "jobs.py:query"]),
            ("explain refused", failed, ["explain", "jobs.py:refused", "--json"]),
            ("verify", done, ["verify", str(self.folder / "log"), *targets, *where, "--json"]),
            ("verify refused", failed, ["verify", str(self.folder / "log"), targets[0], *wrong, "--json"]),
            *(
                (f"list, {kind}", misused, ["txn", "list", f"--at={system}={malformed[kind][setting]}"])
                for kind, setting, system in (
                    ("postgres with a slash", "dsn", "postgres"),
                    ("postgres with an @", "dsn", "postgres"),
                    ("kafka with a login", "bootstrap_servers", "kafka"),
                )
            ),
            ("verify an address", misused, ["verify", f"--target={address}", "--source=kafka:words", "--key=id"]),
        ]

    def _log(self) -> list[str]:
        return ["--store", str(self.folder / "log"), "--pipeline=secrets-engine"]

    def _in_file(self, *kinds: str) -> list[str]:
        """Options that hold no password: of Kafka's settings it is in a file, of PostgreSQL's in the environment."""
        found: list[str] = []
        for kind in kinds:
            settings = self.given["refused"]["kafka"] if kind == "kafka refused" else self.given["sinks"][kind]
            if kind == "postgres":
                parts = psycopg.conninfo.conninfo_to_dict(settings["dsn"])
                parts.pop("password")
                found += ["--at", f"postgres={psycopg.conninfo.make_conninfo('', **parts)}"]
            else:
                file = self.elsewhere / f"{kind}.properties"
                lines = [f"{name}={value}" for name, value in settings["config"].items()]
                file.write_text("\n".join(["# of the tests", "", *lines, ""]))
                found += ["--at", f"kafka={settings['bootstrap_servers']}", "--set", f"kafka:@{file}"]
        return found

    def _environment(self, name: str) -> dict[str, str]:
        parts = psycopg.conninfo.conninfo_to_dict(self.given["sinks"]["postgres"]["dsn"])
        known = {"PGPASSWORD": str(parts["password"])}
        for store, (_, options) in self.given["refused_stores"].items():
            if name == f"checkpoints, {store}":
                known |= {f"FSSPEC_S3_{option.upper()}": value for option, value in options.items()}
        return {**self.environment, **known}

    def _run(self, name: str, codes: set[int], arguments: Sequence[str]) -> tuple[str, str]:
        done = subprocess.run(
            [*PROGRAM, *arguments],
            env=self._environment(name),
            cwd=self.elsewhere,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        said = done.stdout + done.stderr
        if done.returncode not in codes or "Traceback" in said:
            return name, f"UNEXPECTED {done.returncode}: {said}"
        if "--json" in arguments and done.stdout:
            json.loads(done.stdout)
        return name, said

    def page(self, name: str, *options: str) -> dict[str, str]:
        """All that `onceward ui` shows, prints and is called as."""
        started = [*PROGRAM, "ui", "--port=0", *options]
        found: dict[str, str] = {}
        process = subprocess.Popen(
            started,
            env=self._environment(name),
            cwd=self.elsewhere,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            url, _, token = line.split()[-1].partition("#token=")
            assert token, line + process.stdout.read()
            for one in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
                found[f"arguments of {one.pid}"] = "\n".join(one.cmdline())
            order = json.dumps({"pipeline": "x", "position": 1, "confirm": "x"}).encode()
            asked = {"": None, "static/app.js": None, "api/state": None, "api/look": b"", "api/commit": order}
            for path, body in asked.items():
                found[f"page {name} /{path}"] = fetched(f"{url}{path}", token, body)
            listed = json.loads(found[f"page {name} /api/state"].rpartition("\n")[2])["parts"][""]["order"]
            assert listed, "the page shows no pipeline"
            for one in listed:
                path = f"api/pipelines/{one}"
                found[f"page {name} /{path}"] = fetched(f"{url}{path}", token, None)
            found[f"page {name} without token"] = fetched(f"{url}api/state", "", None)
        finally:
            process.send_signal(signal.SIGINT)
            found[f"page {name} printed"] = process.communicate(timeout=30)[0]
        return found


def fetched(url: str, token: str, body: bytes | None) -> str:
    """Status, headers and body of an answer."""
    asked = urllib.request.Request(url, data=body, headers={"x-onceward-token": token})
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return f"{answer.status}\n{answer.headers}\n{answer.read().decode()}"
    except urllib.error.HTTPError as error:
        with error:
            return f"{error.status}\n{error.headers}\n{error.read().decode()}"
