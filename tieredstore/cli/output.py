"""What commands print: JSON lines for programs, tables for people."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

import orjson
from rich import box
from rich.console import Console
from rich.table import Table

from tieredstore.cli.printable import printable

Row = Mapping[str, object]


def write_json(rows: Iterable[Row]) -> None:
    """One object a line."""
    lines = [orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows]
    sys.stdout.buffer.write(b"".join(lines))


def write_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: frozenset[str] = frozenset(),
    title: str = "",
) -> None:
    """A table as wide as the terminal, 80 columns where there is none; `numbers` to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title or None, title_justify="left")
    for name in columns:
        right = name in numbers
        table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=right)
    for row in rows:
        table.add_row(*map(printable, row))
    Console(highlight=False, markup=False, emoji=False).print(table)


def size_text(size: int) -> str:
    """Bytes for people: `998 B`, `1.5 MiB`."""
    if size < 1024:  # noqa: PLR2004 - the next unit
        return f"{size} B"
    value = float(size)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if value < 1000:  # noqa: PLR2004 - four places are enough
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} PiB"


def time_text(timestamp_ms: int | None) -> str:
    """A store timestamp for people, in UTC; nothing where there is none or it is no time."""
    if not timestamp_ms:
        return ""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return f"{moment:%Y-%m-%d %H:%M:%S}"


def count_text(count: int) -> str:
    """A number with its thousands apart."""
    return f"{count:,}"
