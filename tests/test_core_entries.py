from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest

from onceward.core.errors import LogDamagedError
from onceward.core.log import Entry, EpochInput, Rewind, Rewound
from onceward.core.log.entries import decode_entry, encode, key_of, position_of

from .entries_kit import BASE, ENTRIES


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: type(entry).__name__)
def test_an_entry_is_read_back_as_it_was_written(entry: Entry):
    assert decode_entry(encode(entry), 7) == entry


def test_older_versions_read_the_fields_under_their_names():
    """In decision logs, a writer's identity is `writer`, and so is the generation of a committable."""
    text = encode(ENTRIES[1])
    assert text.count(b'"writer":"00112233"') == 1
    assert text.count(b'"writer":3') == 1
    assert b"writer_id" not in text
    assert b"generation" not in text


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: type(entry).__name__)
def test_equal_entries_give_equal_bytes(entry: Entry):
    assert encode(msgspec.json.decode(msgspec.json.encode(entry), type=Entry)) == encode(entry)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: type(entry).__name__)
def test_every_flipped_byte_is_detected_and_the_entry_is_named(entry: Entry):
    data = encode(entry)
    for place in range(len(data)):
        for flip in (0x01, 0x20, 0x80, 0xFF):
            damaged = data[:place] + bytes([data[place] ^ flip]) + data[place + 1 :]
            with pytest.raises(LogDamagedError, match="entry 7 of the decision log"):
                decode_entry(damaged, 7)


def test_every_truncation_is_detected():
    data = encode(ENTRIES[1])
    for length in range(len(data)):
        with pytest.raises(LogDamagedError, match="entry 7"):
            decode_entry(data[:length], 7)


def test_an_entry_that_could_not_be_read_back_is_not_written():
    wrong: Any = True
    with pytest.raises(LogDamagedError, match="Expected `str`, got `bool`"):
        encode(Rewind(**BASE, rewind=Rewound(query="q", epoch=2, why=wrong)))


def test_an_entry_at_another_position_is_refused():
    with pytest.raises(LogDamagedError, match="entry 8 of the decision log says that it is entry 7"):
        decode_entry(encode(ENTRIES[0]), 8)


@pytest.mark.parametrize("body", [b"{}", b'{"entry":"NEWER"}', b"not json", b"[]"])
def test_an_entry_of_an_unknown_layout_is_refused(body: bytes):
    data = b"onceward-log/1 " + hashlib.sha256(body).hexdigest().encode() + b"\n" + body + b"\n"
    with pytest.raises(LogDamagedError, match="entry 7 of the decision log cannot be read"):
        decode_entry(data, 7)


def test_keys_sort_as_positions_do_and_only_entries_have_positions():
    positions = [0, 9, 10, 99, 12345678901234567890]
    keys = [key_of(position) for position in positions]
    assert keys == sorted(keys)
    assert [position_of(key) for key in keys] == positions
    assert [position_of(key) for key in ("", "1", ".put-0", "٣" * 20, "x" * 20, "0" * 21)] == [None] * 6


def test_inputs_are_the_same_when_they_write_down_as_the_same_json():
    one = EpochInput(query="q", start=(1, 2), end={"b": 1, "a": 2})
    two = EpochInput(query="q", start=[1, 2], end={"a": 2, "b": 1})
    assert one.same_as(two)
    for other in (EpochInput(query="r"), EpochInput(query="q", digest="d"), EpochInput(query="q", start=[2, 1])):
        assert not one.same_as(other)
