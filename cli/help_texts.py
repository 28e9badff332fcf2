"""What help says beyond each command's own words: groups of commands, an example each, and types in words."""

from __future__ import annotations

import re
from typing import Any, Final

import typer

HELP_OPTIONS: Final = ["-h", "--help"]
LOOK, ACT, DEVELOP = "Look: these change nothing", "Act", "Develop"
GROUPS: Final = {
    "status": LOOK,
    "checkpoints": LOOK,
    "verify": LOOK,
    "doctor": LOOK,
    "explain": LOOK,
    "ui": ACT,
    "txn": ACT,
    "savepoint": ACT,
    "run": ACT,
    "repair-log": ACT,
    "demo": DEVELOP,
    "dev": DEVELOP,
    "new-sink": DEVELOP,
}
"""Part of the list of commands in which each is shown, in the order in which a person needs them."""
EXAMPLES: Final = {
    "status": "onceward status --store /data/checkpoints",
    "checkpoints": "onceward checkpoints --store /data/checkpoints/orders",
    "verify": "onceward verify /data/checkpoints/orders --at postgres=postgresql://db/shop --target postgres:paid",
    "doctor": "onceward doctor --store /data/checkpoints/orders --at postgres=postgresql://db/shop",
    "explain": "onceward explain job.py",
    "ui": "onceward ui --store /data/checkpoints --at postgres=postgresql://db/shop",
    "run": "onceward run --restart fixed-delay --setting attempts=10 -- python job.py",
    "repair-log": "onceward repair-log --store postgresql://db/logs --pipeline orders",
    "demo": "onceward demo --kills 3",
    "new-sink": "onceward new-sink billing_sink",
    "txn list": "onceward txn list --store /data/checkpoints/orders --at postgres=postgresql://db/shop",
    "txn inspect": "onceward txn inspect TRANSACTION --at postgres=postgresql://db/shop",
    "txn commit": "onceward txn commit --store /data/checkpoints/orders --at postgres=postgresql://db/shop --yes",
    "txn abort": "onceward txn abort --store /data/checkpoints/orders --at postgres=postgresql://db/shop --yes",
    "savepoint create": "onceward savepoint create /data/savepoints/before --checkpoint /data/checkpoints/orders --yes",
    "savepoint list": "onceward savepoint list /data/savepoints",
    "savepoint restore": "onceward savepoint restore /data/savepoints/before --checkpoint /data/checkpoints/new --yes",
    "savepoint delete": "onceward savepoint delete /data/savepoints/before --yes",
    "dev up": "onceward dev up",
    "dev down": "onceward dev down --delete",
    "dev status": "onceward dev status",
    "dev env": 'eval "$(onceward dev env)"',
}
"""A command line for each command."""
_NUMBERS: Final = ("int", "float")
_PARAGRAPHS: Final = re.compile(r"\n\s*\n")


def finish(root: Any) -> Any:
    """Give a command line and all commands below it examples, groups, and help that fits any width.

    Args:
        root: What `typer.main.get_command` returns.

    Returns:
        The same object.
    """
    root.commands = {name: root.commands[name] for name in GROUPS if name in root.commands}
    for name, command in root.commands.items():
        command.rich_help_panel = GROUPS[name]
    commands = [("", root)]
    while commands:
        path, command = commands.pop()
        commands += [(f"{path} {name}".strip(), each) for name, each in getattr(command, "commands", {}).items()]
        command.context_settings = {**command.context_settings, "help_option_names": HELP_OPTIONS}
        command.help = "\n\n".join(" ".join(part.split()) for part in _PARAGRAPHS.split(command.help or ""))
        if path in EXAMPLES:
            command.epilog = f"Example: {EXAMPLES[path]}"
        context = typer.Context(command, help_option_names=HELP_OPTIONS)  # it builds the option that shows the help
        for option in command.get_params(context):
            if getattr(option, "is_flag", False):  # `--yes <bool>` reads as if it took a value
                option.metavar = ""
            elif option.metavar is None:  # `<list[str]>` is Python's word for it
                is_number = any(number in str(option.display_type_rich(context)) for number in _NUMBERS)
                option.metavar = "NUMBER" if is_number else option.name.strip("_").upper()
            if option.param_type_name == "argument":
                option.display_type_rich = _no_type
    return root


def _no_type(ctx: Any) -> str:  # noqa: ARG001 - in place of a method
    return ""
