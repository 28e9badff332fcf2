"""Reading by a type: several threads may be the first that use a class."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from onceward.core.kit import typed

RACE = """
import sys
import threading
import msgspec
from onceward.core.kit import typed

sys.setswitchinterval(1e-6)

def read(cls, together):
    together.wait()
    ASKED

for _ in range(ROUNDS):
    names = {}
    fields = "".join(f"    f{k}: 'list[Inner] | None' = None\\n" for k in range(10))
    inner = "class Inner(msgspec.Struct):\\n    x: 'int | None' = None\\n"
    exec("import msgspec\\n" + inner + "class S(msgspec.Struct):\\n" + fields, names)
    names["S"].__module__, Inner = "__main__", names["Inner"]
    together = threading.Barrier(3)
    threads = [threading.Thread(target=read, args=(names["S"], together)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def exit_code(asked: str, rounds: int) -> int:
    program = RACE.replace("ASKED", asked).replace("ROUNDS", str(rounds))
    return subprocess.run([sys.executable, "-c", program], check=False, timeout=120).returncode


@pytest.mark.parametrize(
    "asked", ['typed.decode(b\'{"f1": [1], "f9": null}\', cls)', "typed.convert({'f1': [{'x': 1}], 'f9': None}, cls)"]
)
def test_threads_that_are_the_first_to_use_a_class_read_it(asked: str):
    assert exit_code(asked, 300) == 0


def test_a_field_that_is_not_valid_gets_its_default_and_costs_no_other_one():
    class Pair(msgspec.Struct):
        number: int
        text: str = ""
        many: dict[str, int] = {}

    assert typed.convert_valid({"number": 1, "text": "a", "other": 2}, Pair) == Pair(1, "a")
    assert typed.convert_valid({"number": 1, "text": 7, "many": {"a": 1}}, Pair) == Pair(1, "", {"a": 1})
    assert typed.convert_valid({"number": 1, "text": None, "many": {"a": "x"}}, Pair) == Pair(1)
    for without in ({}, {"number": "x"}):
        with pytest.raises(msgspec.ValidationError, match="number"):
            typed.convert_valid(without, Pair)


def test_values_and_errors_are_those_of_msgspec():
    class Pair(msgspec.Struct):
        number: int
        text: str = ""

    assert typed.decode('{"number": 1}', Pair) == typed.convert({"number": 1}, Pair) == Pair(1)
    assert typed.convert({"number": "1"}, Pair, strict=False) == Pair(1)
    with pytest.raises(msgspec.ValidationError, match="number"):
        typed.decode("{}", Pair)
    with pytest.raises(msgspec.DecodeError, match="truncated"):
        typed.decode("{", Pair)
    with pytest.raises(msgspec.ValidationError, match="number"):
        typed.convert({"number": "1"}, Pair)
