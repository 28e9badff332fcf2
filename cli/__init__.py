"""The command line: `onceward …`, thin over what it shows."""

import sys


def main() -> None:
    """Run the command line; `onceward --version` alone loads none of its commands."""
    if sys.argv[1:] == ["--version"]:
        from onceward import __version__  # noqa: PLC0415 - as below

        print(f"onceward {__version__}")  # noqa: T201
        return
    from .main import main as run  # noqa: PLC0415 - half a second, and 80 MB

    run()
