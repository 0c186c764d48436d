"""Names, counts, sizes and times as people read them. Pure."""

from datetime import UTC, datetime


def printable(text: str) -> str:
    """The text with a dot in place of every character that is not printable. O(length)."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else "." for character in text)


def escaped(text: str, *, kept: str = "") -> str:
    r"""The text with `\n`, `\x1b` and so on in place of what is not printable. O(length).

    `kept`: characters that stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in kept else ascii(one)[1:-1] for one in text)


def size_text(size: int) -> str:
    """Bytes for people: `998 B`, `1.5 MiB`."""
    if size < 1024:  # noqa: PLR2004 - the next unit
        return f"{size} B"
    value = float(size)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if value < 1000:  # noqa: PLR2004 - four digits are enough
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} PiB"


def time_text(timestamp_ms: int | None) -> str:
    """A store timestamp for people, in UTC; "" for None, the number itself if it is no time."""
    if not timestamp_ms:
        return ""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return f"{moment:%Y-%m-%d %H:%M:%S}"


def count_text(count: int) -> str:
    """A number with separated thousands."""
    return f"{count:,}"
