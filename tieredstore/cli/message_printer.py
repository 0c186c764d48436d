"""How `read` prints messages: JSON, whole lines for a pipe, or a table on a terminal."""

import shutil
import sys
from collections.abc import Iterable

import click

from tieredstore.cli.message_columns import message_columns
from tieredstore.cli.message_rows import message_cells, message_line, message_row
from tieredstore.cli.output import write_json
from tieredstore.message import Message


class MessagePrinter:
    """Prints messages as they come, in one form, chosen before the first."""

    def __init__(
        self, *, as_json: bool, is_terminal: bool, digest: bool, with_queue: bool, max_offset: int
    ) -> None:
        """`max_offset`: no offset is higher; `with_queue`: the table says the queue of each."""
        self._as_json = as_json
        self._digest = digest
        self._columns = None
        if is_terminal and not as_json:
            width = shutil.get_terminal_size((80, 24)).columns
            self._columns = message_columns(width, max_offset, digest=digest, with_queue=with_queue)
        self._is_first = True

    def print(self, messages: Iterable[Message]) -> None:
        """Print some messages, and the head of the table before the first."""
        if self._as_json:
            write_json(message_row(message, digest=self._digest) for message in messages)
        elif self._columns is None:
            self._echo(message_line(message, digest=self._digest) for message in messages)
        else:
            columns = self._columns
            if self._is_first:
                click.echo(columns.head())
            self._is_first = False
            self._echo(
                columns.line(message_cells(message, digest=self._digest)) for message in messages
            )

    def _echo(self, lines: Iterable[str]) -> None:
        text = "\n".join(lines)
        if text:
            click.echo(text)
        sys.stdout.flush()
