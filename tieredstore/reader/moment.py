"""Points in time as text: ISO 8601, a span before now, or Unix milliseconds. Pure."""

import re
from datetime import UTC, datetime

from tieredstore.reader.cursor import moment_ms

_SPAN = re.compile(r"-([0-9]{1,9})(s|m|h|d|w)", re.ASCII)
_SPAN_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_UNIX_MS = re.compile(r"[0-9]{11,14}", re.ASCII)
FORMS = "write 2026-11-21T12:00:00Z, -2h or Unix milliseconds"


def parse_moment(text: str, *, now_ms: int) -> int:
    """A time in Unix ms: `2026-11-21`, `2026-11-21T12:00+08:00`, `-90s`, `1764000000000`.

    A time without a time zone is in UTC, as all times that commands print.

    Raises:
        ValueError: it is none of these; the message lists the forms.
    """
    if span := _SPAN.fullmatch(text):
        return now_ms - int(span[1]) * _SPAN_MS[span[2]]
    if _UNIX_MS.fullmatch(text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is no time: {FORMS}") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment_ms(moment)


def is_span(text: str) -> bool:
    """Whether a text is a span before now, such as `-2h`, which has the form of an option."""
    return _SPAN.fullmatch(text) is not None
