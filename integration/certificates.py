"""Certificates for the tests: an authority, a server's certificate for 127.0.0.1, and a client's."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "wonder-land"
"""Password of the client's locked key."""


def make_certificates(folder: Path) -> Path:
    """Write ca.pem, server.pem, client.pem and the keys; PREFIX.both holds a key and its certificate."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=folder)

    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=authority",
            "-keyout", "ca.key", "-out", "ca.pem")  # fmt: skip
    for name, extra in (("server", "subjectAltName=IP:127.0.0.1"), ("client", "extendedKeyUsage=clientAuth")):
        (folder / f"{name}.ext").write_text(extra)
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", f"{name}.key",
                "-out", f"{name}.csr")  # fmt: skip
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                "-days", "2", "-extfile", f"{name}.ext", "-out", f"{name}.pem")  # fmt: skip
        both = (folder / f"{name}.key").read_text() + (folder / f"{name}.pem").read_text()
        (folder / f"{name}.both").write_text(both)
    openssl("rsa", "-aes256", "-passout", f"pass:{SECRET}", "-in", "client.key", "-out", "client.locked")
    return folder
