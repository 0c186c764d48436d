"""A progress bar on standard error."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from tieredstore.cli.output import size_text

Show = Callable[[int, int, str], None]
"""Takes the amount done, the total, and a note for people."""


@contextmanager
def progress_bar(title: str) -> Generator[Show | None]:
    """A bar that is removed at the end; None if standard error is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (
        TextColumn(title),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    with Progress(
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
def bytes_bar(title: str, total: int) -> Generator[Callable[[int], None]]:
    """A bar over `total` bytes; takes the bytes done since the last call."""
    with progress_bar(title) as show:
        done = 0

        def add(count: int) -> None:
            nonlocal done
            done += count
            if show is not None:
                show(done, total, f"{size_text(done)} of {size_text(total)}")

        yield add
