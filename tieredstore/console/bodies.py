"""Bodies of messages as pages show them: text, JSON or hex, cut to a size. Pure."""

import json
import re
from dataclasses import dataclass

from tieredstore.texts import escaped

TEXT, JSON, HEX = "text", "json", "hex"
TEXT_BYTES_MAX = 64 << 10
"""Bytes of a body that a page shows as text or JSON."""
HEX_BYTES_MAX = 16 << 10
HEX_WIDTH = 16
UTF8_BYTES_MAX = 4
DEPTH_SHOWN_MAX = 40
"""Depth of JSON from which on lines are no longer indented further."""
PREVIEW_BYTES = 160
INDENT = "  "
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


@dataclass(frozen=True, slots=True)
class ShownBody:
    """Body of a message in one form."""

    form: str
    text: str
    forms: tuple[str, ...]
    """Forms that the body has."""
    size: int
    is_cut: bool


def shown_body(body: bytes, form: str | None) -> ShownBody:
    """Show a body; without a form, or with one that it does not have, in the most readable."""
    text = _decoded(body[:TEXT_BYTES_MAX], is_cut=len(body) > TEXT_BYTES_MAX)
    as_json = _json_text(text) if text is not None and len(body) <= TEXT_BYTES_MAX else None
    forms = ((JSON,) if as_json is not None else ()) + ((TEXT,) if text is not None else ())
    forms = (*forms, HEX)
    chosen = form if form in forms else forms[0]
    if chosen == JSON and as_json is not None:
        return ShownBody(JSON, visible(as_json), forms, len(body), is_cut=False)
    if chosen == TEXT and text is not None:
        return ShownBody(TEXT, visible(text), forms, len(body), len(body) > TEXT_BYTES_MAX)
    return ShownBody(HEX, _hex(body[:HEX_BYTES_MAX]), forms, len(body), len(body) > HEX_BYTES_MAX)


def preview(body: bytes) -> str:
    """Begin of a body in one line; "" if it is no text."""
    text = _decoded(body[:PREVIEW_BYTES], is_cut=len(body) > PREVIEW_BYTES)
    return "" if text is None else visible(" ".join(text.split()))


def visible(text: str) -> str:
    r"""Text with escapes (`\x1b`, `\u202e`) for what is not printable, but for line ends and tabs.

    Marks that change the direction of text cannot hide what a message has.
    """
    return escaped(text.replace("\r\n", "\n"), kept="\n\t")


def _decoded(body: bytes, *, is_cut: bool) -> str | None:
    """The text of a body; None if it is none. A cut may divide the last character."""
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        if is_cut and error.start >= len(body) - UTF8_BYTES_MAX:
            return body[: error.start].decode()
        return None


def _json_text(text: str) -> str | None:
    """Indented JSON with every token as it was; None if the text is no object and no array."""
    if text.lstrip()[:1] not in {"{", "["}:
        return None
    try:
        json.loads(text, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return None
    parts, depth, before = list[str](), 0, ""
    for word in _TOKEN.findall(text):
        if word in {"}", "]"}:
            depth -= 1
        opens = before in {"{", "["}
        closes = word in {"}", "]"}
        if before and ((opens and not closes) or (closes and not opens) or before == ","):
            parts.append("\n" + INDENT * min(depth, DEPTH_SHOWN_MAX))
        parts.append(": " if word == ":" else word)
        if word in {"{", "["}:
            depth += 1
        before = word
    return "".join(parts)


def _hex(body: bytes) -> str:
    lines = list[str]()
    for at in range(0, len(body), HEX_WIDTH):
        row = body[at : at + HEX_WIDTH]
        letters = "".join(chr(one) if 32 <= one < 127 else "." for one in row)  # noqa: PLR2004 - ASCII
        lines.append(f"{at:08x}  {row.hex(' '):{3 * HEX_WIDTH}} {letters}")
    return "\n".join(lines)
