"""Where one message goes, alone in its call, if nothing about it is out of the ordinary. Pure.

It makes what `prepare` and `plan_append` make of it, in about a third of the time: what messages of
one producer to one queue have in common is worked out once. All else it leaves to those two.
"""

from collections.abc import Mapping
from functools import lru_cache
from struct import Struct
from struct import error as StructError  # noqa: N812 - a class, although named as a function
from typing import NamedTuple

from container.names.queue_id import QueueId
from container.record.blank import BlankRecord
from container.record.checksum import BODY_CRC_MASK, crc32
from container.record.header import Host, shape_of
from container.record.layout import HOST_BITS, TRANSACTION_MASK
from container.record.properties import PROPERTIES_BYTES_MAX
from container.record.unit import ConsumeQueueUnit
from tieredstore.hot.append_plan import Appended
from tieredstore.hot.encoding import (
    INNER_BATCH,
    KEPT_MAX,
    WITHOUT_UNIT,
    NewMessage,
    host_of,
    properties_of,
    queue_of,
    sys_flag_and_layout,
)
from tieredstore.hot.options import HotWriteOptions

_pack_length = Struct(">h").pack
_pack_unit = ConsumeQueueUnit.LAYOUT.pack


class OnePlan(NamedTuple):
    """One message's record and unit, and where they go; nothing is changed yet."""

    queue: QueueId
    record: bytes
    unit: bytes
    appended: Appended


def plan_one(
    end: int,
    next_offsets: Mapping[QueueId, int],
    message: NewMessage,
    *,
    now_ms: int,
    options: HotWriteOptions,
) -> OnePlan | None:
    """Place a message after `end`, as `prepare` and `plan_append` would; None where they must.

    They must where it is refused, has no unit, is the first of its queue, or does not go to the
    file of `end`. Some 3 us.
    """
    try:
        return _plan(end, next_offsets, message, now_ms, options)
    except (AttributeError, TypeError, ValueError, StructError):
        return None  # `prepare` says what is wrong


def _plan(
    end: int,
    next_offsets: Mapping[QueueId, int],
    message: NewMessage,
    now_ms: int,
    options: HotWriteOptions,
) -> OnePlan | None:
    topic, queue_id, body, properties, flag, sys_flag, born_ms, born, store, again, prepared = (
        message
    )
    own = options.store_host
    common = _common(topic, queue_id, sys_flag, born or own, store or own)
    if common is None or type(body) is not bytes or type(message) is not NewMessage:
        return None
    queue, pack, magic, sys_flag, born_address, born_port, address, port, topic_part, beside = (
        common
    )
    offset = next_offsets.get(queue)
    text, tag_code = properties_of(properties)
    body_bytes, text_bytes = len(body), len(text)
    size = beside + body_bytes + text_bytes
    file_bytes = options.commit_log_bytes
    if (
        offset is None
        or topic in options.own_topics
        or queue_id is True
        or queue_id is False
        or options.record_crc
        or body_bytes > options.message_bytes_max
        or text_bytes > PROPERTIES_BYTES_MAX
        or end % file_bytes + size + BlankRecord.SIZE > file_bytes
    ):
        return None
    fixed = pack(
        size, magic, crc32(body) & BODY_CRC_MASK, queue_id, flag, offset, end, sys_flag,
        now_ms if born_ms is None else born_ms, born_address, born_port, now_ms, address, port,
        again, prepared, body_bytes,
    )  # fmt: skip
    return OnePlan(
        queue,
        b"".join((fixed, body, topic_part, _pack_length(text_bytes), text)),
        _pack_unit(end, size, tag_code),
        Appended(offset, end, size, now_ms),
    )


@lru_cache(KEPT_MAX)
def _common(topic: str, queue_id: int, sys_flag: int, born_host: Host, store_host: Host):  # noqa: ANN202
    """What messages have in common that agree in these fields; None where they have no unit."""
    if sys_flag & TRANSACTION_MASK in WITHOUT_UNIT or sys_flag & INNER_BATCH:
        return None
    queue, magic, encoded = queue_of(topic, queue_id)
    born, store = host_of(born_host), host_of(store_host)
    sys_flag, layout = sys_flag_and_layout(sys_flag & ~HOST_BITS, born, store)
    shape = shape_of(magic, layout, encoded)
    beside = layout.body + shape.after_body_bytes
    places = (*born[:2], *store[:2])
    return (queue, layout.fixed.pack, magic, sys_flag, *places, shape.topic_part, beside)
