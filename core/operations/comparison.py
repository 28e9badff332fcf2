"""Compare the rows of an output with those that must be in it, as multisets, and name the rows that differ."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

Row: TypeAlias = dict[str, Any]

_SHOWN: Final = 10
_LONGEST: Final = 1_000
"""Characters of a value that a discrepancy shows."""


class Record(NamedTuple):
    """A row, and where it is: `topic-partition@offset`, `table@row`, `file@line`."""

    row: Row
    position: str


class Mismatch(StrEnum):
    """The ways in which a row of an output can be wrong."""

    MISSING = "missing"
    DUPLICATED = "duplicated"
    WRONG = "wrong"
    """No such row is expected: another content for its key, or a key that nothing must come out for."""


class Discrepancy(NamedTuple):
    """One row that is not as it must be."""

    kind: Mismatch
    row: Row
    copies: int
    """Copies that are missing or too many."""
    positions: tuple[str, ...]
    """Positions of the row in the output."""


def key_names(key: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns of a key that is one column, several, or none."""
    return (key,) if isinstance(key, str) else tuple(key or ())


def text_of_row(row: Row) -> str:
    """Return a row in one line, the same for the same content."""
    return json.dumps(row, sort_keys=True, default=str, ensure_ascii=False)


def _digest(row: Row) -> bytes:
    text = json.dumps(row, sort_keys=True, default=_tagged, ensure_ascii=False)
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()


def _tagged(value: Any) -> Any:
    """Return a value as JSON can have it; bytes under a name that no text has, since it is no valid Unicode."""
    return {"\udcff": value.hex()} if isinstance(value, bytes) else str(value)


def clipped(row: Row) -> Row:
    """Return a row for people, with bytes as Python writes them, and long values cut: findings are kept in memory."""
    return {name: _clip(value) for name, value in row.items()}


def _clip(value: Any) -> Any:
    if isinstance(value, (str, bytes)) and len(value) > _LONGEST:
        text = value if isinstance(value, str) else str(value[:_LONGEST])
        return f"{text[:_LONGEST]}… ({len(value)} {'characters' if isinstance(value, str) else 'bytes'})"
    if isinstance(value, bytes):
        return repr(value)
    if isinstance(value, (dict, list)) and len(text := json.dumps(value, default=str)) > _LONGEST:
        return f"{text[:_LONGEST]}… ({len(text)} characters)"
    return value


class _Copies(NamedTuple):
    """Equal rows of one side, of which one is kept."""

    row: Row
    positions: list[str]


class _Side:
    """Rows of one side of a comparison, by a digest of their content."""

    def __init__(self, rows: Iterable[tuple[Row, str]]) -> None:
        self.copies: dict[bytes, _Copies] = {}
        self.rows = 0
        for row, position in rows:
            digest = _digest(row)
            if digest not in self.copies:
                self.copies[digest] = _Copies(clipped(row), [])
            self.copies[digest].positions.append(position)
            self.rows += 1

    def count(self, digest: bytes) -> int:
        return len(self.copies[digest].positions) if digest in self.copies else 0


@dataclass(frozen=True)
class Comparison:
    """Result of comparing one output with the rows that must be in it.

    Attributes:
        output: Name of the output.
        expected: Number of rows that must be in it.
        found: Number of rows in it.
        findings: Rows that are missing, duplicated or wrong.
    """

    output: str
    expected: int
    found: int
    findings: tuple[Discrepancy, ...]

    @property
    def exact(self) -> bool:
        """Whether the output has exactly the expected rows."""
        return not self.findings

    def count(self, kind: Mismatch) -> int:
        """Count the rows of a kind."""
        return sum(finding.copies for finding in self.findings if finding.kind is kind)


def compare(
    output: str, expected: Iterable[Row], actual: Iterable[Record], key: str | Sequence[str] | None = None
) -> Comparison:
    """Compare an output with what must be in it.

    Rows are compared whole, by a digest. Findings show the first 1,000 characters of a value.

    Args:
        output: Name of the output.
        expected: The rows that must be in it, in any order.
        actual: The rows that are in it.
        key: Column or columns that identify a row: a row of another content then counts as wrong, and not also as
            missing.
    """
    names = key_names(key)
    wanted = _Side((row, "") for row in expected)
    present = _Side(actual)
    findings: list[Discrepancy] = []
    replaced: Counter[Any] = Counter()
    for digest, (row, positions) in present.copies.items():
        extra = len(positions) - wanted.count(digest)
        if extra > 0:
            kind = Mismatch.DUPLICATED if digest in wanted.copies else Mismatch.WRONG
            findings.append(Discrepancy(kind, row, extra, tuple(positions)))
            if kind is Mismatch.WRONG and names and all(name in row for name in names):
                replaced[_identity(row, names)] += extra
    for digest, (row, positions) in wanted.copies.items():
        lacking = len(positions) - present.count(digest)
        if lacking > 0:
            identity = _identity(row, names)
            covered = min(lacking, replaced[identity])
            replaced[identity] -= covered
            if lacking > covered:
                findings.append(Discrepancy(Mismatch.MISSING, row, lacking - covered, ()))
    return Comparison(output, wanted.rows, present.rows, tuple(findings))


def _identity(row: Row, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(str(row.get(name)) for name in names)


@dataclass(frozen=True)
class Verdict:
    """What was found in all outputs of a case.

    Attributes:
        comparisons: Result for each output.
        left_open: Transactions that are open or prepared, in words.
        key: Column that identifies a row.
        sources: Positions in the inputs, by the key's value.
    """

    comparisons: tuple[Comparison, ...]
    left_open: tuple[str, ...] = ()
    key: str | None = None
    sources: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def exact(self) -> bool:
        """Whether each output is as it must be, and nothing is left open."""
        return not self.left_open and all(comparison.exact for comparison in self.comparisons)

    @property
    def may_improve(self) -> bool:
        """Whether waiting can help: rows may still come or change, but duplicated rows stay."""
        late = {Mismatch.MISSING, Mismatch.WRONG}
        return bool(self.left_open) or any(f.kind in late for c in self.comparisons for f in c.findings)

    def torn(self) -> dict[tuple[str, str], list[str]]:
        """Return the keys that are right in one output and missing in another, by the two outputs."""
        if self.key is None:
            return {}
        bad = {c.output: {str(f.row.get(self.key)) for f in c.findings} for c in self.comparisons}
        missing = {
            c.output: [str(f.row.get(self.key)) for f in c.findings if f.kind is Mismatch.MISSING]
            for c in self.comparisons
        }
        pairs = {
            (there, here): [name for name in names if name not in bad[there]]
            for here, names in missing.items()
            for there in missing
            if here != there
        }
        return {pair: names for pair, names in pairs.items() if names}

    def lines(self) -> Iterator[str]:
        """Return the verdict in words, with the offending rows and their positions."""
        for comparison in self.comparisons:
            counts = ", ".join(f"{comparison.count(kind)} {kind}" for kind in Mismatch)
            yield f"{comparison.output}: {comparison.expected} rows expected, {comparison.found} found: {counts}"
            for kind in Mismatch:
                findings = [finding for finding in comparison.findings if finding.kind is kind]
                yield from (self._line(finding) for finding in findings[:_SHOWN])
                if len(findings) > _SHOWN:
                    yield f"  … and {len(findings) - _SHOWN} more that are {kind}"
        for (there, here), names in self.torn().items():
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            yield f"torn: in {there} and missing in {here}: {self.key} {', '.join(names[:_SHOWN])}{more}"
        yield from (f"left open: {what}" for what in self.left_open)

    def _line(self, finding: Discrepancy) -> str:
        sources = self.sources.get(str(finding.row.get(self.key)), ()) if self.key else ()
        origin = f"; input {', '.join(sources)}" if sources else ""
        where = f", at {', '.join(finding.positions)}" if finding.positions else ""
        return f"  {finding.kind}: {text_of_row(finding.row)}{where}{origin}"
