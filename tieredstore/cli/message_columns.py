"""Widths of the columns of `read`, chosen before the first line is printed. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

from tieredstore.cli.output import count_text

TITLES = ("queue", "offset", "stored (UTC)", "bytes", "tags", "keys", "body")
DIGEST = "body SHA-256"
NUMBERS = frozenset({0, 1, 3})
QUEUE, BODY = 0, 6
TIME_CELLS, BYTES_CELLS = 19, 9
QUEUE_CELLS, OFFSET_CELLS_MIN, TAGS_CELLS_MIN, KEYS_CELLS_MIN = 5, 6, 8, 12
TAGS_CELLS_MORE, KEYS_CELLS_MORE = 8, 24
"""Cells that tags and keys get in addition if the terminal has room."""
BODY_CELLS_MIN, DIGEST_CELLS = 24, 64
BETWEEN = "  "
CUT = "\u2026"


@dataclass(frozen=True, slots=True)
class MessageColumns:
    """The columns shown, by number, with their widths in cells."""

    shown: tuple[int, ...]
    widths: tuple[int, ...]
    titles: tuple[str, ...]

    def head(self) -> str:
        """The line above the first message."""
        return self.line(self.titles)

    def line(self, cells: Sequence[str]) -> str:
        """One message; `cells` has all columns, shown or not."""
        parts = [
            cells[number].rjust(width) if number in NUMBERS else fitted(cells[number], width)
            for number, width in zip(self.shown, self.widths, strict=True)
        ]
        return BETWEEN.join(parts).rstrip()


def fitted(text: str, width: int) -> str:
    """Text in exactly `width` cells: filled with spaces, or cut and marked as cut."""
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(text, max(0, width - 1)) + CUT * (width > 0)


def message_columns(
    terminal: int, max_offset: int, *, digest: bool, with_queue: bool = False
) -> MessageColumns:
    """The columns for a terminal of `terminal` cells and offsets below `max_offset`.

    Tags, then keys get the room that the body does not need. On a narrow terminal bytes, time and
    keys are left out, in this order.
    """
    shown = [*([QUEUE] if with_queue else []), 1, 2, 3, 4, 5, BODY]
    offset = max(OFFSET_CELLS_MIN, len(count_text(max_offset)))
    widths = [QUEUE_CELLS, offset, TIME_CELLS, BYTES_CELLS, TAGS_CELLS_MIN, KEYS_CELLS_MIN, 0]

    def room() -> int:
        between = len(BETWEEN) * (len(shown) - 1)
        return terminal - between - sum(widths[number] for number in shown)

    for number in (3, 2, 5):
        if room() < BODY_CELLS_MIN // 2:
            shown.remove(number)
    spare = max(0, room() - (DIGEST_CELLS if digest else BODY_CELLS_MIN))
    for number, more in ((4, TAGS_CELLS_MORE), (5, KEYS_CELLS_MORE)):
        if number in shown:
            widths[number] += min(more, spare)
            spare -= min(more, spare)
    widths[BODY] = max(0, room())
    titles = (*TITLES[:BODY], DIGEST if digest else TITLES[BODY])
    return MessageColumns(tuple(shown), tuple(widths[number] for number in shown), titles)
