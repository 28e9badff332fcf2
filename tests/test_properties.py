"""Every encoder and parser: what is written is read back, and whatever else is read gives one of our errors.

Values are drawn by hypothesis, the same ones in each run, so that nobody is stopped by what others have written. For
others, set `derandomize=False` below, and a larger `max_examples`.
"""

from __future__ import annotations

import string
import struct
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onceward.connectors.database.mariadb import Xid, read_xid
from onceward.connectors.database.target import TableName, Url
from onceward.connectors.files.partition_folders import rows_by_folder
from onceward.connectors.files.sink import FileSink
from onceward.connectors.kafka import reread
from onceward.connectors.kafka.positions import (
    Partition,
    assignment_from_json,
    from_json,
    offsets_as_json,
    parse_bound,
)
from onceward.connectors.kafka.settings import KafkaSettings, split_options
from onceward.connectors.kafka.sink import KafkaSink
from onceward.connectors.kafka.transaction_state import Handle, Prepared
from onceward.connectors.redis.sink import RedisSink
from onceward.connectors.spark.read.kafka_offsets import stream_source
from onceward.core.contract.names import (
    AcceptedName,
    PooledName,
    Scope,
    TransactionName,
    file_name,
    parse_accepted_name,
    parse_file_name,
    parse_pooled_name,
    parse_transaction_name,
)
from onceward.core.contract.proof import Proof, total, without
from onceward.core.contract.transaction import Acknowledgement, Committable, Written
from onceward.core.engine.state.handles import (
    FileRef,
    KeyedHandle,
    ListHandle,
    Metadata,
    OperatorRecord,
    SubtaskState,
    decode_metadata,
    encode_metadata,
)
from onceward.core.engine.state.keys import group_in, key_in, row
from onceward.core.engine.state.row_store import decode_cells, encode_cells
from onceward.core.errors import ConfigurationError, LogDamagedError, OncewardError, StateDamagedError
from onceward.core.kit.rows import to_json as row_to_json
from onceward.core.kit.sealed import seal, unseal
from onceward.core.kit.secrets import redact, shown_address
from onceward.core.kit.text_options import arguments
from onceward.core.log.entries import (
    Completed,
    Decide,
    Entry,
    EpochInput,
    Moved,
    Resolved,
    Rewind,
    Rewound,
    Start,
    Void,
    decode_entry,
    encode,
    key_of,
    position_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

settings.register_profile(
    "onceward",
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("onceward")

TEXT = st.text(st.characters(codec="utf-8"), max_size=30)
NAME = st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=32).filter(
    lambda name: name not in {".", ".."}
)
LOG = st.text("0123456789abcdef", min_size=8, max_size=8)
COUNT = st.integers(0, 2**53)
SHORT = st.integers(0, 2**31)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
GARBAGE = st.binary(max_size=200) | TEXT.map(str.encode) | JSON.map(msgspec.json.encode)
SCOPES = st.builds(Scope, NAME, NAME, LOG)
UNIQUE = st.text("0123456789abcdef", min_size=4, max_size=32)
NAMES = st.builds(TransactionName, SCOPES, SHORT, SHORT, SHORT, SHORT, UNIQUE)
PROOFS = st.builds(Proof, st.text("0123456789abcdef", min_size=32, max_size=32), st.tuples(TEXT))
COMMITTABLES = st.builds(
    Committable,
    kind=TEXT, version=SHORT, pipeline=NAME, sink=NAME, log=LOG, generation=COUNT, epoch=COUNT, subtask=SHORT,
    attempt=SHORT, transaction=TEXT, handle=st.dictionaries(TEXT, JSON, max_size=3), rows=COUNT,
    proof=st.none() | PROOFS,
)  # fmt: skip
BASE: dict[str, Any] = {"pipeline": NAME, "log": LOG, "position": COUNT, "writer_id": LOG, "start": COUNT, "at": TEXT}
INPUTS = st.builds(EpochInput, query=TEXT, digest=TEXT, start=JSON, end=JSON)
REWOUND = st.builds(Rewound, query=TEXT, epoch=COUNT, why=TEXT)
ENTRIES: st.SearchStrategy[Entry] = st.one_of(
    st.builds(Start, **BASE),
    st.builds(
        Decide, **BASE, epoch=COUNT, sinks=st.tuples(NAME), committables=st.lists(COMMITTABLES, max_size=3).map(tuple),
        input=INPUTS, state=st.dictionaries(TEXT, JSON, max_size=2), follows=st.none() | COUNT,
        rewind=st.none() | REWOUND,
    ),
    st.builds(Completed, **BASE, epoch=COUNT, floor=COUNT),
    st.builds(Rewind, **BASE, rewind=REWOUND),
    st.builds(Void, **BASE, epoch=COUNT, proofs=st.lists(TEXT, max_size=3).map(tuple)),
    st.builds(Resolved, **BASE, epoch=COUNT, transaction=TEXT, action=TEXT, who=TEXT, why=TEXT),
    st.builds(Moved, **BASE, to=TEXT),
)  # fmt: skip
PARTITIONS = st.builds(Partition, TEXT.filter(bool), SHORT)
OFFSETS = st.dictionaries(PARTITIONS, st.integers(-2, 2**63 - 1), max_size=5)
FILE = TEXT.filter(lambda name: name not in {"", ".", ".."} and not {"/", "\0"} & set(name))
PATH = st.lists(FILE, min_size=1, max_size=3).map("/".join)
SUBTASKS = st.builds(
    SubtaskState,
    position=JSON,
    keyed=st.none()
    | st.builds(
        KeyedHandle,
        first=SHORT,
        end=SHORT,
        files=st.lists(st.builds(FileRef, FILE, PATH, COUNT, TEXT, st.booleans()), max_size=2).map(tuple),
        inline=st.binary(max_size=20),
    ),
    lists=st.dictionaries(TEXT, st.builds(ListHandle, TEXT, st.lists(st.binary(max_size=9), max_size=2)), max_size=2),
)
METADATA = st.builds(
    Metadata, pipeline=NAME, log=LOG, checkpoint=COUNT, max_parallelism=SHORT,
    operators=st.dictionaries(TEXT, st.builds(OperatorRecord, kind=TEXT, subtasks=st.lists(SUBTASKS, max_size=2))),
)  # fmt: skip
CELLS = st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=9), st.binary(max_size=40)), max_size=6)


def ours(read: Callable[..., Any], *given_: Any) -> None:
    """Reading gives a value or one of our errors, whose message can be shown."""
    try:
        read(*given_)
    except OncewardError as error:
        str(error).encode()


class TestReadBack:
    @given(ENTRIES)
    def test_entries_of_the_decision_log(self, entry: Entry):
        assert decode_entry(encode(entry), entry.position) == entry

    @given(COMMITTABLES)
    def test_committables(self, committable: Committable):
        assert Committable.from_json(committable.to_json()) == committable

    @given(st.builds(
        Acknowledgement, epoch=COUNT, subtask=SHORT, attempt=SHORT, sinks=st.tuples(NAME),
        committables=st.lists(COMMITTABLES, max_size=2).map(tuple), written=st.tuples(st.builds(Written, NAME, COUNT)),
    ))  # fmt: skip
    def test_acknowledgements(self, acknowledgement: Acknowledgement):
        assert Acknowledgement.from_json(acknowledgement.to_json()) == acknowledgement

    @given(
        st.builds(PooledName, SCOPES, UNIQUE, SHORT, st.none() | SHORT), st.tuples(COUNT, SHORT, COUNT),
        st.frozensets(st.tuples(TEXT, SHORT), min_size=1, max_size=4), COMMITTABLES,
    )  # fmt: skip
    def test_handles_of_kafka(self, name: PooledName, numbers: Any, partitions: Any, committable: Committable):
        prepared = Prepared(Handle(str(name), *numbers), partitions, frozenset({("topic", "id")}))
        fields = {**name.scope._asdict(), "transaction": str(name), "handle": prepared.to_json()}
        made = msgspec.structs.replace(committable, kind="kafka", version=1, **fields)
        assert Prepared.of(Committable.from_json(made.to_json())) == prepared

    @given(NAMES)
    def test_names_of_transactions_and_files(self, name: TransactionName):
        assert parse_transaction_name(str(name)) == parse_file_name(file_name(str(name))) == name
        assert "/" not in file_name(str(name))
        assert len(str(name)) < 200

    @given(NAMES, st.sampled_from(["pipeline", "sink", "log", "generation", "epoch", "subtask", "attempt"]))
    def test_names_of_committables_say_what_the_committables_say(self, name: TransactionName, field: str):
        committable = Committable.named("k", name)
        assert committable.read_name() == name
        other = f"{getattr(committable, field)}x" if field in {"pipeline", "sink", "log"} else 2**40
        with pytest.raises(LogDamagedError, match="is not the name of this transaction"):
            msgspec.structs.replace(committable, **{field: other}).read_name()

    @given(st.builds(PooledName, SCOPES, UNIQUE, SHORT, st.none() | SHORT))
    def test_transactional_ids(self, name: PooledName):
        assert parse_pooled_name(str(name)) == name
        assert parse_transaction_name(str(name)) is None

    @given(st.builds(AcceptedName, SCOPES, LOG))
    def test_accepted_names(self, name: AcceptedName):
        assert parse_accepted_name(str(name)) == name

    @given(st.builds(TransactionName, SCOPES, *[st.integers(0, 10**8)] * 4, LOG))
    def test_xa_identifiers(self, name: TransactionName):
        xid = Xid.of(name)
        shown = f"X'{xid.gtrid.encode().hex()}',X'{xid.bqual.encode().hex()}',{str(xid).rpartition(',')[2]}"
        assert read_xid(shown, name.scope.pipeline, name.scope.sink) == name

    @given(OFFSETS)
    def test_offsets(self, offsets: dict[Partition, int]):
        assert (
            from_json(offsets_as_json(offsets))
            == from_json(msgspec.json.encode(offsets_as_json(offsets)).decode())
            == offsets
        )

    @given(PARTITIONS)
    def test_partitions(self, partition: Partition):
        assert Partition.named(str(partition)) == partition

    @given(METADATA)
    def test_metadata_of_checkpoints(self, metadata: Metadata):
        assert decode_metadata(encode_metadata(metadata), "here") == metadata

    @given(CELLS)
    def test_cells_of_state(self, cells: list[tuple[bytes, bytes, bytes]]):
        assert list(decode_cells(b"".join(encode_cells(cells)), "here")) == cells

    @given(st.integers(0, 2**15 - 1), st.text(string.ascii_letters, min_size=1, max_size=20), st.binary(max_size=40))
    def test_rows_of_state(self, group: int, state: str, key: bytes):
        made = row(group, state, key)
        assert (group_in(made), key_in(made)) == (group, key)

    @given(
        st.lists(st.text("0123456789abcdef", min_size=32, max_size=32), max_size=5),
        st.text("0f", min_size=32, max_size=32),
    )
    def test_hashes_of_rows(self, hashes: list[str], other: str):
        assert without(total([*hashes, other]), other) == total(hashes)

    @given(JSON)
    def test_rows_as_json(self, value: Any):
        assert msgspec.json.decode(row_to_json(value)) == value

    @given(COUNT)
    def test_keys_of_entries(self, position: int):
        assert position_of(key_of(position)) == position

    @given(TEXT.filter(lambda text: "\0" not in text), TEXT.filter(lambda text: "\0" not in text))
    def test_secrets_of_connection_strings(self, password: str, user: str):
        from psycopg.conninfo import make_conninfo

        read = Url.from_dsn(make_conninfo(host="h", dbname="d", user=f"u{user}", password=f"{password}~geheim~"))
        assert (read.libpq()["password"], read.libpq()["user"]) == (f"{password}~geheim~", f"u{user}")
        assert "~geheim~" not in f"{read} {read!r} {read.redact(f'no {password}~geheim~')}"


class TestGarbage:
    @given(GARBAGE)
    def test_entries_of_the_decision_log(self, data: bytes):
        ours(decode_entry, data, 7)
        ours(decode_entry, seal("onceward-log", data), 7)

    @given(GARBAGE)
    def test_committables_and_acknowledgements(self, data: bytes):
        ours(Committable.from_json, data)
        ours(Acknowledgement.from_json, data)

    @given(GARBAGE)
    def test_checkpoints(self, data: bytes):
        ours(decode_metadata, data, "here")
        ours(decode_metadata, seal("onceward-checkpoint", data), "here")
        ours(lambda: list(decode_cells(data, "here")))
        ours(lambda: list(decode_cells(b"onceward-rows/1\n" + data, "here")))
        ours(lambda: list(decode_cells(b"onceward-rows/2\n" + data, "here")))
        assert unseal("onceward-log", data, "it") is None or data.startswith(b"onceward-log")

    @given(
        st.dictionaries(
            st.sampled_from(["producer_id", "producer_epoch", "started_ms", "partitions", "topic_ids"]), JSON
        )
    )
    def test_handles_of_kafka(self, handle: dict[str, Any]):
        ours(
            Prepared.of,
            Committable(
                kind="kafka", pipeline="p", sink="s", log="0" * 8, generation=0, epoch=0, transaction="t", handle=handle
            ),
        )

    @given(TEXT | st.from_regex(r"onceward:1:[ab]:s:0123abcd(:[0-9]{1,3}){0,4}:?[0-9a-f]{0,9}(:0)?", fullmatch=True))
    @pytest.mark.parametrize("parse", [parse_transaction_name, parse_pooled_name, parse_accepted_name, parse_file_name])
    def test_names(self, parse: Callable[[str], Any], text: str):
        found = parse(text)
        assert found is None or (file_name(str(found)) if parse is parse_file_name else str(found)) == text

    @pytest.mark.parametrize("parse", [parse_transaction_name, parse_pooled_name])
    def test_names_with_numbers_of_thousands_of_digits_are_not_ours(self, parse: Callable[[str], Any]):
        """Kafka takes ids of up to 32,767 characters, and anybody may choose one; Python reads 4,300 digits."""
        many = "9" * 5000
        assert parse(f"onceward:1:p:s:0123abcd:{many}:{many}:0:0:0123abcd") is None
        assert parse(f"onceward:1:p:s:0123abcd:{many}:0123abcd:{many}") is None

    @given(TEXT)
    def test_xa_identifiers(self, text: str):
        assert read_xid(text, "p", "s") is None
        assert read_xid(f"X'{text.encode().hex()}',X'{text.encode().hex()}',1330528068", "p", "s") is None

    @given(JSON | TEXT | JSON.map(lambda value: msgspec.json.encode(value).decode()))
    def test_positions(self, value: Any):
        for read in (from_json, assignment_from_json):
            ours(read, value)
        ours(parse_bound, value, "startingOffsets")
        for option in ("startingOffsetsByTimestamp", "startingTimestamp"):
            text = value if isinstance(value, str) else "x"
            ours(stream_source, {"kafka.bootstrap.servers": "b:1", "subscribe": "t", option: text})
        ours(reread.offsets_in, value, "topic")

    @given(st.binary(max_size=300) | st.builds(
        lambda first, length, magic: struct.pack(">qiibIhiqqqhi", first, length, 0, magic, 0, 16, 2, 0, 0, 7, 1, 0),
        st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1), st.integers(-128, 127),
    ))  # fmt: skip
    def test_record_batches(self, data: bytes):
        ours(lambda: list(reread._headers(data * 3)))

    @given(st.dictionaries(TEXT, TEXT, max_size=4))
    @pytest.mark.parametrize("sink", [KafkaSink, RedisSink], ids=lambda sink: sink.__name__)
    def test_options(self, sink: Any, options: dict[str, str]):
        ours(sink.from_options, options)

    @given(st.sampled_from(["timeout", "parts", "on"]), TEXT)
    def test_values_of_options(self, name: str, text: str):
        def make(timeout: float = 1.0, parts: list[int] | None = None, *, on: bool = False) -> None: ...

        ours(lambda: arguments(make, {name: text}))

    @given(
        st.dictionaries(
            TEXT | st.sampled_from(["kafka.sasl.jaas.config", "kafka.bootstrap.servers", "kafka.linger.ms"]),
            TEXT,
            max_size=4,
        )
    )
    def test_settings_of_kafka(self, options: dict[str, str]):
        config, _ = split_options(options)
        ours(lambda: KafkaSettings("localhost:9092", config).for_wire())

    @given(TEXT)
    def test_urls(self, text: str):
        ours(Url, text)
        ours(Url.from_dsn, text)
        ours(Url, f"postgresql://{text}")
        ours(lambda: TableName.parse(text) if hasattr(TableName, "parse") else TableName(None, text))


class TestSecrets:
    @given(st.text(st.characters(codec="utf-8"), min_size=6, max_size=20), TEXT, TEXT)
    def test_a_secret_is_in_no_redacted_message(self, secret: str, before: str, after: str):
        from urllib.parse import quote

        for form in (secret, quote(secret), quote(secret, safe=""), repr(secret)[1:-1]):
            assert secret not in redact(f"{before}{form}{after}", [secret]).replace("***", "\0")

    @given(TEXT, TEXT)
    def test_a_url_is_shown_without_its_secrets(self, before: str, after: str):
        from urllib.parse import quote

        secret = f"{before}~geheim~{after}"
        for url in (f"s3://key:{secret}@host/x", f"postgresql://h/d?password={quote(secret)}&sslmode=require"):
            assert "geheim" not in shown_address(url)
        assert shown_address("postgresql://h/d?sslpassword=x&sslmode=require") == (
            "postgresql://h/d?sslpassword=***&sslmode=require"
        )

    @given(st.text(string.ascii_letters + string.digits + "!#$%&()*+,-./:<>?@[]^_`{|}~", min_size=8, max_size=30))
    def test_the_settings_of_kafka_show_none(self, secret: str):
        password = f"geheim{secret}"
        config = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "u",
            "sasl.password": password,
        }
        shown = KafkaSettings("localhost:9092", config)
        assert (
            password not in f"{shown} {shown!r} {KafkaSink('k', topic='t', bootstrap_servers='h:1', config=config)!r}"
        )


NESTED = "[" * 100_000


def test_nesting_that_no_parser_follows_is_one_of_our_errors():
    for body in (NESTED.encode(), b'{"kind":' + NESTED.encode(), b'"\xff"'):
        for read in (Committable.from_json, Acknowledgement.from_json):
            with pytest.raises(LogDamagedError):
                read(body)
        with pytest.raises(LogDamagedError):
            decode_entry(seal("onceward-log", body), 7)
        with pytest.raises(StateDamagedError):
            decode_metadata(seal("onceward-checkpoint", body), "here")
    with pytest.raises(ConfigurationError):
        from_json(NESTED)


@given(st.text(min_size=1, max_size=30), JSON)
@pytest.mark.parametrize("kind", ["files", "write-ahead-log"])
def test_altered_committables_of_folders_reach_no_other_file(tmp_path_factory: Any, kind: str, name: str, value: Any):
    """Names of transactions and files become paths."""
    folder = tmp_path_factory.mktemp("out", numbered=True)
    redis = RedisSink("s", folder, url="redis://h/0", key="k")
    sink: Any = FileSink("s", folder, format="jsonl") if kind == "files" else redis
    scope = Scope("p", "s", "0123abcd")
    good = str(TransactionName(scope, 1, 2, 0, 0, "0123abcd"))
    for transaction, handle in [
        (name, {}),
        (good, {"files": [f"../{name}"]}),
        (good, {"files": value}),
        (good, {"sha256": 1}),
    ]:
        altered = Committable(
            kind=kind, **scope._asdict(), generation=1, epoch=2, transaction=transaction, handle=handle
        )
        if parse_transaction_name(transaction) is None or (handle and not isinstance(value, list)):
            for act in (sink.commit, sink.abort, lambda one: sink.inspect_many([one])):
                with pytest.raises(LogDamagedError):
                    act(altered)


@given(st.lists(TEXT | st.none(), min_size=1, max_size=5))
def test_folders_of_partitions_are_single_names(values: list[str | None]):
    import pyarrow as pa

    batch = pa.record_batch({"p": pa.array(values, pa.string()), "n": pa.array(range(len(values)))})
    found = list(rows_by_folder(batch, ["p"]))
    assert sum(part.num_rows for _, part in found) == len(values)
    for folder, _ in found:
        assert folder.count("/") <= 1
        assert folder.startswith("p=")
        assert folder.rstrip("/") not in {"p=.", "p=.."}
