"""Tables of `FORMAT.md`, generated from the declarations, so that the document cannot be outdated.

`python -m tests.support.format_tables < container/FORMAT.md` prints the document with every table
renewed. A table is between `<!-- table: title -->` and `<!-- end -->`. To document another
format, add its table to `tables`.
"""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct, calcsize

from container.index.layout import (
    BEGIN_MAGIC,
    END_MAGIC,
    IndexHeader,
    IndexItem,
    IndexSlot,
    OpenIndexItem,
)
from container.java.metadata import SEGMENT_FIELDS, JavaQueue, JavaSegment, JavaTopic
from container.journal.frame import FRAME_FIELDS, Frame
from container.metadata.codec import OPERATIONS
from container.metadata.operations import ManifestSwap, Release, RepackedRun
from container.metadata.records import (
    Attempt,
    Broker,
    Extent,
    Gap,
    IndexFile,
    ManifestRef,
    Part,
    Queue,
    QueueBasis,
    Segment,
    Tombstone,
    Topic,
)
from container.record import header
from container.record.batch import HEADER_DTYPE
from container.record.header import BLANK_MAGIC, BlankRecord, Coda
from container.record.unit import ConsumeQueueUnit

TABLES_OF = (Broker, Topic, Queue, Tombstone, Attempt, IndexFile, Part)
"""Records that a snapshot lists."""

PIECES = (
    Segment,
    ManifestRef,
    Gap,
    Extent,
    QueueBasis,
    Release,
    RepackedRun,
    ManifestSwap,
)
"""Parts of records and operations."""

_MARKED = re.compile(r"<!-- table: (?P<title>[^>]+) -->\n.*?<!-- end -->", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FormatTable:
    """Markdown table. Cells are Markdown."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        lines = [self.columns, ("---",) * len(self.columns), *self.rows]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def fill(document: str, tables_now: Sequence[FormatTable]) -> str:
    """Replace the contents of every marked table in a document. O(length).

    Raises:
        KeyError: the document marks a table that is not declared.
    """
    by_title = {table.title: table for table in tables_now}

    def renew(match: re.Match[str]) -> str:
        title = match["title"]
        return f"<!-- table: {title} -->\n{by_title[title]}\n<!-- end -->"

    return _MARKED.sub(renew, document)


def field_notes(cls: type) -> dict[str, str]:
    """Docstrings of the fields of a class, as one line each. "" for a field without one."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    notes: dict[str, str] = {}
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            text = ""
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                text = " ".join(str(after.value.value).split())
            if "ClassVar" not in ast.unparse(node.annotation):
                notes[node.target.id] = text.replace("|", "\\|")
    return notes


def struct_table(title: str, packed: Struct, fields: Sequence[tuple[str, str]]) -> FormatTable:
    """Table of the fields of a struct, each a name and a note. Sizes come from the struct."""
    codes = re.findall(r"[0-9]*[a-zA-Z]", packed.format)
    assert len(codes) == len(fields), title
    rows: list[tuple[str, ...]] = []
    place = 0
    for code, (name, note) in zip(codes, fields, strict=True):
        size = calcsize(f">{code}")
        rows.append((str(place), str(size), name, note))
        place += size
    return FormatTable(title, ("offset", "bytes", "field", "meaning"), tuple(rows))


def _magics() -> FormatTable:
    rows = (
        ("record, version 1", header.MAGIC_V1),
        ("record, version 2", header.MAGIC_V2),
        ("blank record, coda", BLANK_MAGIC),
        ("index file with room", BEGIN_MAGIC),
        ("sealed index file", END_MAGIC),
    )
    cells = tuple((name, f"`0x{magic:08X}`", str(magic - 2**32)) for name, magic in rows)
    return FormatTable("magic codes", ("of", "hex", "signed"), cells)


def _record_head() -> FormatTable:
    fields = HEADER_DTYPE.fields
    assert fields is not None
    rows = tuple((str(at[1]), str(at[0].itemsize), name) for name, at in fields.items())
    return FormatTable("record head", ("offset", "bytes", "field"), rows)


def _record_rest() -> FormatTable:
    flags = (0, header.BORN_HOST_V6, header.STORE_HOST_V6, 0x30)
    four = tuple(header.layout_of(flag) for flag in flags)

    def row(name: str, size: str, places: Sequence[int]) -> tuple[str, ...]:
        return (name, size, *map(str, places))

    born = f"{header.HOST_V4_BYTES} or {header.HOST_V6_BYTES}"
    rows = (
        row("born host: address, port (4)", born, [header.BORN_HOST_AT] * 4),
        row("store timestamp", "8", [one.store_timestamp for one in four]),
        row("store host: address, port (4)", born, [one.store_host for one in four]),
        row("reconsume times", "4", [one.tail for one in four]),
        row("prepared transaction offset", "8", [one.tail + 4 for one in four]),
        row("body length", "4", [one.body_length for one in four]),
        row("body", "n", [one.body for one in four]),
        ("topic length, signed", "v1: 1, v2: 2", *["after the body"] * 4),
        ("topic, UTF-8", "t", *["after its length"] * 4),
        ("properties length, signed", "2", *["after the topic"] * 4),
        ("properties", "p", *["to the end"] * 4),
        row("shortest record, v1", "", [one.overhead(header.MAGIC_V1) for one in four]),
        row("shortest record, v2", "", [one.overhead(header.MAGIC_V2) for one in four]),
    )
    columns = ("field", "bytes", "IPv4, IPv4", "born IPv6", "store IPv6", "both IPv6")
    return FormatTable("record after the head", columns, rows)


def _sys_flag() -> FormatTable:
    names = (
        ("COMPRESSED", "the body is compressed"),
        ("MULTI_TAGS", "several tags"),
        ("TRANSACTION_PREPARED", "two-bit field: prepared"),
        ("TRANSACTION_COMMIT", "two-bit field: committed"),
        ("TRANSACTION_ROLLBACK", "two-bit field: rolled back"),
        ("BORN_HOST_V6", "the born host has 20 bytes"),
        ("STORE_HOST_V6", "the store host has 20 bytes"),
        ("NEED_UNWRAP", "a batch to unwrap"),
        ("INNER_BATCH", "an inner batch"),
        ("COMPRESSION_TYPE_MASK", "0x100 LZ4 frame, 0x200 Zstandard, 0x300 or 0 zlib"),
    )
    rows = tuple((f"`0x{getattr(header, name):03X}`", name, note) for name, note in names)
    return FormatTable("sysFlag", ("bits", "name", "meaning"), rows)


def _java_fields(title: str, cls: type, names: Sequence[str]) -> FormatTable:
    notes = list(field_notes(cls).items())
    assert len(notes) == len(names), title
    rows = tuple((f"`{name}`", ours, note) for name, (ours, note) in zip(names, notes, strict=True))
    return FormatTable(title, ("JSON", "field", "meaning"), rows)


def _metadata() -> tuple[FormatTable, ...]:
    """Tables of the journal's own formats: the frame, the keys of records, the operations."""
    frame = struct_table(
        "metadata frame", Frame.LAYOUT, tuple((name, note) for name, _, note in FRAME_FIELDS)
    )
    records = tuple(
        (cls.__name__, f"`{name}`", note)
        for cls in (*TABLES_OF, *PIECES)
        for name, note in field_notes(cls).items()
        if name != "extra"
    )
    operations = tuple(
        (f"`{cls.__name__}`", ", ".join(field_notes(cls)), (cls.__doc__ or "").split("\n")[0])
        for cls in OPERATIONS
    )
    return (
        frame,
        FormatTable("metadata records", ("record", "key", "meaning"), records),
        FormatTable("metadata operations", ("`op`", "keys", "effect"), operations),
    )


def _index() -> tuple[FormatTable, ...]:
    item = field_notes(IndexItem)
    open_item = {**item, **field_notes(OpenIndexItem)}
    header, slot = field_notes(IndexHeader), field_notes(IndexSlot)
    return (
        struct_table("index header", IndexHeader.LAYOUT, tuple(header.items())),
        struct_table("sealed index slot", IndexSlot.LAYOUT, tuple(slot.items())),
        struct_table("sealed index item", IndexItem.LAYOUT, tuple(item.items())),
        struct_table("open index item", OpenIndexItem.LAYOUT, tuple(open_item.items())),
    )


def tables() -> tuple[FormatTable, ...]:
    """All tables of `FORMAT.md`."""
    queue = ("queue.brokerName", "queue.topic", "queue.queueId")
    offsets = ("minOffset", "maxOffset", "updateTimestamp")
    topic = ("topicId", "topic", "status", "reserveTime", "updateTimestamp")
    coda = (("length", "16"), ("magic", "of a blank"), *field_notes(Coda).items())
    return (
        _magics(),
        _record_head(),
        _record_rest(),
        _sys_flag(),
        struct_table(
            "ConsumeQueue unit",
            ConsumeQueueUnit.LAYOUT,
            tuple(field_notes(ConsumeQueueUnit).items()),
        ),
        struct_table(
            "blank record",
            BlankRecord.LAYOUT,
            (*field_notes(BlankRecord).items(), ("magic", "of a blank")),
        ),
        struct_table("coda", Coda.LAYOUT, coda),
        *_index(),
        _java_fields("Java metadata: segment", JavaSegment, tuple(SEGMENT_FIELDS)),
        _java_fields("Java metadata: queue", JavaQueue, queue + offsets),
        _java_fields("Java metadata: topic", JavaTopic, topic),
        *_metadata(),
    )


if __name__ == "__main__":
    sys.stdout.write(fill(sys.stdin.read(), tables()))
