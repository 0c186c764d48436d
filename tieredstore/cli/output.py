"""Output of commands: JSON lines for programs, tables and progress bars for people.

A name from outside is escaped: it must not control a terminal or break a line.
"""

import os
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
import orjson
from rich.cells import cell_len

from tieredstore.texts import printable, size_text

if TYPE_CHECKING:
    from rich.table import Table

Row = Mapping[str, object]

TEXT_WIDTH_MIN = 16
"""Cells that a column of long text needs to be readable."""
BETWEEN = 3
"""Cells between two columns."""


def is_terminal() -> bool:
    """Whether what is printed is seen at once, by people; else a program may read it."""
    return sys.stdout.isatty()


def write_json(rows: Iterable[Row]) -> None:
    """Write JSON lines to standard output."""
    lines = [orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows]
    sys.stdout.buffer.write(b"".join(lines))


def write_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: frozenset[str] = frozenset(),
    title: str = "",
) -> None:
    """A table as wide as the terminal (or `COLUMNS`), and as it needs where there is none.

    `numbers` are columns to the right. Long text is continued in the next line; numbers are never
    cut. If that leaves too little room for text, each row is printed as a list of names and values.
    """
    from rich.console import Console  # noqa: PLC0415 - takes a tenth of a second, and JSON needs none

    cells = [[printable(cell) for cell in row] for row in rows]
    whole = None if is_terminal() or "COLUMNS" in os.environ else _width_whole(columns, cells)
    console = Console(highlight=False, markup=False, emoji=False, width=whole)
    if _width_min(columns, cells, numbers) > console.width:
        _write_lists(columns, cells, title=title)
        return
    with console.capture() as drawn:
        console.print(table_of(columns, cells, numbers, title=title))
    # Rich pads lines with spaces, which are in the way when a table is copied or compared.
    click.echo("\n".join(line.rstrip() for line in drawn.get().splitlines()))


def table_of(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    numbers: frozenset[str],
    *,
    title: str = "",
) -> "Table":
    """A table to be drawn by rich; `numbers` to the right."""
    from rich import box  # noqa: PLC0415 - as above
    from rich.table import Table  # noqa: PLC0415 - as above

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title or None, title_justify="left")
    for name in columns:
        right = name in numbers
        table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=right)
    for row in rows:
        table.add_row(*map(printable, row))
    return table


def _widths(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[int]:
    """Cells that each column takes uncut."""
    widths = [cell_len(name) for name in columns]
    for row in rows:
        widths = [max(width, cell_len(cell)) for width, cell in zip(widths, row, strict=True)]
    return widths


def _width_whole(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> int:
    """A width at which no line is continued."""
    return sum(width + BETWEEN for width in _widths(columns, rows)) + BETWEEN


def _width_min(
    columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: frozenset[str]
) -> int:
    """The narrowest terminal, in cells, on which a table reads well."""
    widths = _widths(columns, rows)
    return sum(
        (width if name in numbers else min(width, TEXT_WIDTH_MIN)) + BETWEEN
        for name, width in zip(columns, widths, strict=True)
    )


def _write_lists(columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str) -> None:
    if title:
        click.echo(title)
    width = max(map(cell_len, columns))
    for row in rows:
        click.echo("")
        for name, cell in zip(columns, row, strict=True):
            if cell:
                click.echo(f"{name.ljust(width)} {cell}")


Show = Callable[[int, int, str], None]
"""Takes the amount done, the total, and a note for people."""


@contextmanager
def progress_bar(title: str) -> Generator[Show | None]:
    """A bar that is removed at the end; None if standard error is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich import progress  # noqa: PLC0415 - as above
    from rich.console import Console  # noqa: PLC0415 - as above

    columns = (
        progress.TextColumn(title),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.TextColumn("{task.fields[note]}"),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(
        *columns,
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # otherwise output to a file would be shown instead
    ) as bar:
        task = bar.add_task(title, total=None, note="")

        def show(done: int, total: int, note: str) -> None:
            bar.update(task, completed=done, total=total, note=note)

        yield show


@contextmanager
def bytes_progress(title: str) -> Generator[Callable[[int, int], None]]:
    """A bar over bytes; takes those done, and the total."""
    with progress_bar(title) as show:

        def move(done: int, total: int) -> None:
            if show is not None:
                show(done, total, f"{size_text(done)} of {size_text(total)}")

        yield move


@contextmanager
def bytes_bar(title: str, total: int) -> Generator[Callable[[int], None]]:
    """A bar over `total` bytes; takes the bytes done since the last call."""
    with bytes_progress(title) as move:
        done = 0

        def add(count: int) -> None:
            nonlocal done
            done += count
            move(done, total)

        yield add
