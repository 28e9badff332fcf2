"""An S3 server (SeaweedFS) of the tests' own, which can be killed and started again."""

from __future__ import annotations

import json
import subprocess
import sysconfig
import time
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import pytest
import s3fs
from botocore.exceptions import BotoCoreError

from onceward.testing.machine import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator


KEY, SECRET, BUCKET = "dev", "dev-secret", "logs"
RENEWED = "renewed"
"""A second key of the same user, with the same secret."""


class S3Server:
    """SeaweedFS in one process, with one bucket."""

    def __init__(self, folder: Path, secret: str = SECRET) -> None:
        self.folder = folder
        self.secret = secret
        self.ports: dict[str, int] = {}
        for part in ("master", "volume", "filer", "s3"):
            for name in (f"{part}.port", f"{part}.port.grpc"):
                self.ports[name] = free_port(set(self.ports.values()))
        self._write_identity(secret)

    def _write_identity(self, secret: str) -> None:
        keys = [{"accessKey": key, "secretKey": secret} for key in (KEY, RENEWED)]
        identity = {"name": KEY, "credentials": keys, "actions": ["Admin"]}
        (self.folder / "s3.json").write_text(json.dumps({"identities": [identity]}))

    def change_secret(self, secret: str) -> None:
        """Start again with another secret; clients keep the one that they have."""
        self.kill()
        self.secret = secret
        self._write_identity(secret)
        self.start()

    def start(self) -> None:
        """Start, and wait until it takes a put."""
        command = [Path(sysconfig.get_path("scripts")) / "weed", "server", "-s3", f"-s3.config={self.folder}/s3.json"]
        command += ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={self.folder}"]
        command += ["-volume.max=200", "-master.volumeSizeLimitMB=16", "-master.telemetry=false"]
        command += ["-master.electionTimeout=1s", "-master.heartbeatInterval=100ms"]
        command += ["-s3.port.iceberg=0", "-s3.port.lance=0"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *(f"-{name}={port}" for name, port in self.ports.items())], stdout=log, stderr=log
            )
        deadline = time.monotonic() + 60
        while True:
            try:
                files = s3fs.S3FileSystem(**self.options, skip_instance_cache=True)
                files.makedirs(BUCKET, exist_ok=True)
                files.pipe_file(f"{BUCKET}/started", b"yes")
            except (OSError, BotoCoreError):
                assert time.monotonic() < deadline
                assert self.process.poll() is None
                time.sleep(0.3)
            else:
                return

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    @contextmanager
    def running(self) -> Iterator[S3Server]:
        """Start, and kill at the end."""
        try:
            self.start()
            yield self
        finally:
            self.kill()

    @property
    def options(self) -> dict[str, Any]:
        """What s3fs needs to reach it."""
        config = {"connect_timeout": 2, "read_timeout": 10, "retries": {"total_max_attempts": 1}}
        address = f"http://127.0.0.1:{self.ports['s3.port']}"
        return {"key": KEY, "secret": self.secret, "endpoint_url": address, "config_kwargs": config}


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")).running() as server:
        yield server


@pytest.fixture
def url(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A user says in fsspec's configuration how to connect; other processes are told by the environment."""
    monkeypatch.setitem(fsspec.config.conf, "s3", s3.options)
    for name in ("key", "secret", "endpoint_url"):
        monkeypatch.setenv(f"FSSPEC_S3_{name.upper()}", s3.options[name])
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"
