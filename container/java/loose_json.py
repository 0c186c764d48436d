"""A reader for the JSON that fastjson writes, which is not always JSON.

fastjson leaves integer keys unquoted (`{0:{...},1048576:{...}}`), and RocketMQ 5.1.0 even has whole
objects as keys. Strict JSON is read too.
"""

import re
from typing import NoReturn

from provider.errors import Corrupt
from provider.object_store import Buffer

DEPTH_MAX = 32
"""Deepest nesting that is read; RocketMQ's file has five levels."""
NUMBER_DIGITS_MAX = 64

ObjectKey = tuple[tuple[str, "Json"], ...]
"""An object that stood as a key: its fields, sorted by name."""
JsonObject = dict["str | ObjectKey", "Json"]
Json = None | bool | int | float | str | list["Json"] | JsonObject

_BLANK = re.compile(r"[ \t\r\n\ufeff]*")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
_WORD = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*", re.ASCII)
_PLAIN = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*")}
_HEX4 = re.compile(r"[0-9a-fA-F]{4}", re.ASCII)
_HEX2 = re.compile(r"[0-9a-fA-F]{2}", re.ASCII)
_ESCAPES = {
    "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    '"': '"', "'": "'", "\\": "\\", "/": "/",
}  # fmt: skip
_WORDS: dict[str, Json] = {"null": None, "true": True, "false": False}


def parse_loose_json(raw: Buffer, *, path: str) -> Json:
    """The value that `raw`, the contents of the file `path`, holds. O(length).

    Read beyond strict JSON: unquoted numbers and words as keys (a number key becomes its text),
    objects as keys, single quotes, control characters inside strings. Of equal keys the last
    counts, as in Java.

    Raises:
        Corrupt: anything else, with the byte position.
    """
    data = bytes(raw)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise Corrupt("metadata is not UTF-8", path, error.start) from error
    return _Reader(text, path).document()


class _Reader:
    """A cursor over the text; each method reads one thing and moves behind it."""

    def __init__(self, text: str, path: str) -> None:
        self._text = text
        self._path = path
        self._at = 0
        self._depth = 0

    def document(self) -> Json:
        value = self._value()
        self._skip_blank()
        if self._at < len(self._text):
            self._fail("something follows the value")
        return value

    def _fail(self, reason: str) -> NoReturn:
        position = len(self._text[: self._at].encode())
        raise Corrupt(reason, self._path, position)

    def _skip_blank(self) -> None:
        found = _BLANK.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _peek(self) -> str:
        """The next character that is not blank; "" at the end."""
        self._skip_blank()
        return self._text[self._at : self._at + 1]

    def _take(self, character: str) -> bool:
        """Move over `character` if it is next."""
        if self._peek() != character:
            return False
        self._at += 1
        return True

    def _match(self, pattern: re.Pattern[str]) -> str | None:
        found = pattern.match(self._text, self._at)
        if found is None:
            return None
        self._at = found.end()
        return found.group()

    def _value(self) -> Json:
        first = self._peek()
        if first == "{":
            return self._object()
        if first == "[":
            return self._array()
        if first and first in _PLAIN:
            return self._string(first)
        if first == "-" or first.isdigit():
            return self._number()
        start = self._at
        word = self._match(_WORD)
        if word not in _WORDS:
            self._at = start
            self._fail("no value here")
        return _WORDS[word]

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._fail(f"nested deeper than {DEPTH_MAX}")
        self._at += 1

    def _object(self) -> JsonObject:
        self._enter()
        found: JsonObject = {}
        if not self._take("}"):
            while True:
                key = self._key()
                if not self._take(":"):
                    self._fail("a colon is missing")
                found[key] = self._value()
                if self._take("}"):
                    break
                if not self._take(","):
                    self._fail("object does not go on")
        self._depth -= 1
        return found

    def _array(self) -> list[Json]:
        self._enter()
        found: list[Json] = []
        if not self._take("]"):
            while True:
                found.append(self._value())
                if self._take("]"):
                    break
                if not self._take(","):
                    self._fail("array does not go on")
        self._depth -= 1
        return found

    def _key(self) -> "str | ObjectKey":
        first = self._peek()
        if first and first in _PLAIN:
            return self._string(first)
        if first == "{":
            return self._object_key()
        start = self._at
        key = self._match(_NUMBER) or self._match(_WORD)
        if key is None:
            self._at = start
            self._fail("no key here")
        return key

    def _object_key(self) -> ObjectKey:
        start = self._at
        fields: list[tuple[str, Json]] = []
        for name, value in self._object().items():
            if not isinstance(name, str) or isinstance(value, list | dict):
                self._at = start
                self._fail("a key holds more than plain fields")
            fields.append((name, value))
        return tuple(sorted(fields, key=lambda field: field[0]))

    def _number(self) -> int | float:
        start = self._at
        text = self._match(_NUMBER)
        if text is None or len(text) > NUMBER_DIGITS_MAX:
            self._at = start
            self._fail("impossible number")
        return int(text) if text.lstrip("-").isdigit() else float(text)

    def _string(self, quote: str) -> str:
        start = self._at
        self._at += 1
        pieces: list[str] = []
        while True:
            pieces.append(self._match(_PLAIN[quote]) or "")
            ending = self._text[self._at : self._at + 1]
            self._at += 1
            if ending == quote:
                return "".join(pieces)
            if not ending:
                self._at = start
                self._fail("string does not end")
            pieces.append(self._escape())

    def _escape(self) -> str:
        """What stands behind a backslash."""
        kind = self._text[self._at : self._at + 1]
        self._at += 1
        if kind == "u":
            return self._utf16()
        if kind == "x" and (digits := self._match(_HEX2)):
            return chr(int(digits, 16))
        if kind not in _ESCAPES:
            self._at -= 1
            self._fail("unknown escape")
        return _ESCAPES[kind]

    def _utf16(self) -> str:
        """The character of one `u` escape, or of two that are a surrogate pair."""
        start = self._at
        units = self._match(_HEX4) or self._fail("escape without four digits")
        if self._text.startswith("\\u", self._at) and units[:2].lower() in ("d8", "d9", "da", "db"):
            self._at += 2
            units += self._match(_HEX4) or self._fail("escape without four digits")
        try:
            return bytes.fromhex(units).decode("utf-16-be")
        except UnicodeDecodeError:
            self._at = start
            self._fail("unpaired surrogate")
