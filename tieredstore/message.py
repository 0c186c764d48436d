"""Messages as a program reads them: body decompressed, properties by name."""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import partial
from html import escape
from ipaddress import IPv6Address
from itertools import repeat
from operator import itemgetter
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from container.record.body import decompress
from container.record.header import COMPRESSED, Host
from container.record.message import MessageDecoder, StoredMessage, tags_in
from container.record.properties import KEYS, TAGS, UNIQ_KEY
from provider.object_store import Buffer

OnBrokerFailure = Callable[[str, str, Exception], None]
"""Callback for cluster, broker and error of one of several brokers, which cannot be read."""
BODY_SHOWN = 1000
"""Bytes of a body that a notebook shows."""


class Origin(NamedTuple):
    """The broker of a message."""

    cluster: str
    broker: str


class Message(tuple[Any, ...]):
    """A message of a queue. Owns its bytes: it keeps no cache alive and may be kept for long.

    `message.stored` has the remaining fields of the record: flag, body CRC and so on.
    """

    # A tuple because `map` creates one in C: offset, store time, `StoredMessage.parts`, and the
    # body if it is not the one of the record.
    __slots__ = ()

    offset: int = property(  # pyright: ignore[reportAssignmentType] - read-only
        itemgetter(0), doc="Queue offset: the position in its queue, counted in messages."
    )
    store_timestamp: int = property(  # pyright: ignore[reportAssignmentType] - likewise
        itemgetter(1), doc="Time at which the broker stored it, Unix ms."
    )

    def __new__(cls, stored: StoredMessage, body: bytes) -> Self:
        """The message of a record and of its body, decompressed."""
        fields = stored.queue_offset, stored.store_timestamp, *stored.parts, body
        return super().__new__(cls, fields)

    @property
    def stored(self) -> StoredMessage:
        """The record, field by field; body and properties as they are stored."""
        _, _, record, shape, properties_at, _ = self
        return StoredMessage(record, shape, properties_at)

    @property
    def body(self) -> bytes:
        """The body, decompressed."""
        body = self[5]
        if body is None:
            shape = self[3]
            return self[2][shape.body_at : self[4] - shape.after_body_bytes]
        return body

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return False
        return self[2] == other[2] and self.body == other.body

    def __ne__(self, other: object) -> bool:  # that of a tuple would be inherited
        return not self == other

    def __hash__(self) -> int:
        return hash(self[2])

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.stored, self.body)

    @classmethod
    def decode(cls, raw: Buffer, *, path: str) -> Self:
        """The message of one whole record, found in the queue that `path` names in errors.

        Raises:
            Corrupt: the record or its compressed body contradicts its format.
        """
        return cls.of(StoredMessage.decode(raw, path=path, position=0), path=path)

    @classmethod
    def of(cls, stored: StoredMessage, *, path: str) -> Self:
        """The message of a decoded record; about 0.5 us where the body is not compressed.

        Raises:
            Corrupt: the compressed body contradicts its format; `path` names its queue.
        """
        body = stored.body
        if body and stored.sys_flag & COMPRESSED:
            position = stored.physical_offset
            body = decompress(body, stored.sys_flag, path=path, position=position)
        return cls(stored, body)

    def __repr__(self) -> str:
        labels = " ".join(filter(None, (self.tags, *self.keys)))
        about = f" {labels}" if labels else ""
        return (
            f"<Message {self.topic}/{self.queue_id} {self.offset}:{about} {len(self.body)} bytes>"
        )

    def _repr_html_(self) -> str:
        """Table of the fields, for notebooks."""
        body = self.body[:BODY_SHOWN]
        try:
            text = body.decode()
        except UnicodeDecodeError as error:
            is_cut = error.end >= BODY_SHOWN and len(self.body) > BODY_SHOWN
            text = body[: error.start].decode() if is_cut else body.hex(" ")
        rest = len(self.body) - BODY_SHOWN
        fields = {
            "queue": f"{self.topic}/{self.queue_id}",
            "offset": self.offset,
            "stored at": self.stored_at,
            "tags": self.tags,
            "keys": " ".join(self.keys),
            "body": f"{text} ... {rest:,} bytes more" if rest > 0 else text,
        }
        named = {name: text for name, text in self.properties.items() if name not in {TAGS, KEYS}}
        return html_table((), [*fields.items(), *sorted(named.items())])

    @property
    def topic(self) -> str:
        """The topic."""
        return self[3].topic

    @property
    def queue_id(self) -> int:
        """The queue's number."""
        return self.stored.queue_id

    @property
    def tags(self) -> str:
        """The tag that consumers subscribe to; "" without one."""
        return tags_in(self[2], self[4])

    @property
    def keys(self) -> list[str]:
        """The keys that the producer gave."""
        return self.stored.keys

    @property
    def properties(self) -> dict[str, str]:
        """All properties by name, RocketMQ's own (`UNIQ_KEY`, `TAGS`, `KEYS`) included.

        Decoded at each reading, some 0.2 us a property.
        """
        return self.stored.property_map

    @property
    def msg_id(self) -> str:
        """The message id as RocketMQ's clients show it: UNIQ_KEY, or else `offset_msg_id`."""
        return self.properties.get(UNIQ_KEY) or self.offset_msg_id

    @property
    def offset_msg_id(self) -> str:
        """The id made of the broker's host and of the record's position, in upper-case hex.

        The position is that in the tier, as for clients that read from RocketMQ's tiered store; it
        differs from the id under which the broker stored the message.
        """
        return self.stored.message_id

    @property
    def born_timestamp(self) -> int:
        """Time at which the producer created it, by the producer's clock, Unix ms."""
        return self.stored.born_timestamp

    @property
    def stored_at(self) -> datetime | None:
        """Time at which the broker stored it, in UTC; None outside the years 1 to 9999."""
        return self.stored.stored_at

    @property
    def born_at(self) -> datetime | None:
        """Time at which the producer created it, in UTC; None outside the years 1 to 9999."""
        return self.stored.born_at

    @property
    def born_host(self) -> str:
        """The producer's `ip:port`."""
        return host_text(self.stored.born_host)

    @property
    def store_host(self) -> str:
        """The broker's `ip:port`."""
        return host_text(self.stored.store_host)

    @property
    def sys_flag(self) -> int:
        """RocketMQ's bits, without that of a compressed body, for `body` is not."""
        return self.stored.sys_flag & ~COMPRESSED if self.stored.body else self.stored.sys_flag


def messages_in(
    decoder: MessageDecoder, picked: slice | NDArray[np.int64], *, path: str
) -> Iterator[Message]:
    """The messages of some records; about 0.4 us each where all are alike and none is compressed.

    The iterator raises `Corrupt` as `MessageDecoder.messages` and `Message.of`.
    """
    columns = decoder.columns(picked)
    if columns is None:
        return (Message.of(stored, path=path) for stored in decoder.messages(picked))
    create = partial(tuple.__new__, Message)  # pyright: ignore[reportUnknownMemberType] - of any
    return map(create, zip(*columns, repeat(None), strict=False))


def html_table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Table in HTML with every text escaped."""

    def line(cells: Iterable[object], tag: str) -> str:
        texts = (escape("" if one is None else str(one)) for one in cells)
        return f"<tr>{''.join(f'<{tag}>{text}</{tag}>' for text in texts)}</tr>"

    titles = list(head)
    top = f"<thead>{line(titles, 'th')}</thead>" if titles else ""
    return f"<table>{top}<tbody>{''.join(line(row, 'td') for row in rows)}</tbody></table>"


def host_text(host: Host) -> str:
    """`ip:port`; IPv6 in brackets with all its eight groups, as Java writes it."""
    address, port = host
    if ":" not in address:
        return f"{address}:{port}"
    packed = IPv6Address(address).packed
    groups = (int.from_bytes(packed[at : at + 2]) for at in range(0, len(packed), 2))
    return f"[{':'.join(f'{group:x}' for group in groups)}]:{port}"
