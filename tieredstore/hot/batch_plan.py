"""Fast plans of an append: one ordinary message, or many alike of one topic. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import accumulate, chain, repeat
from struct import Struct
from struct import error as StructError  # noqa: N812 - a class, although named as a function
from typing import Any, cast

from container.names.queue_id import QueueId
from container.record.checksum import BODY_CRC_MASK, crc32
from container.record.header import HOST_BITS, TRANSACTION_MASK, BlankRecord, Host, shape_of
from container.record.properties import NAME_END, PAIR_END, PROPERTIES_BYTES_MAX, TAGS
from container.record.unit import ConsumeQueueUnit
from tieredstore.hot.encoding import (
    INNER_BATCH,
    KEPT_MAX,
    TAGS_BEGIN,
    WITHOUT_UNIT,
    Appended,
    AppendPlan,
    FileAppend,
    NewMessage,
    host_of,
    properties_of,
    queue_of,
    stored_properties,
    sys_flag_and_layout,
    tag_code_of,
)
from tieredstore.hot.options import HotWriteOptions

_pack_length = Struct(">h").pack
_pack_unit = ConsumeQueueUnit.LAYOUT.pack


_new = cast("Callable[..., Appended]", tuple.__new__)  # pyright: ignore[reportUnknownMemberType] - its items
_appended = partial(_new, Appended)
"""`Appended._make`, without its check of the length."""

OnePlan = tuple[QueueId, bytes, bytes, Appended]
"""Queue, record, unit and place of one message. Not written yet."""


def plan_one(
    end: int,
    next_offsets: Mapping[QueueId, int],
    message: NewMessage,
    now_ms: int,
    options: HotWriteOptions,
) -> OnePlan | None:
    """Place a message after `end`, as `prepare` and `plan_append` would. None if they must do it.

    They must if the message is refused, has no unit, is the first of its queue, or does not go to
    the file of `end`. Costs some 2 us.
    """
    try:
        (
            topic, queue_id, body, properties, flag, sys_flag, born_ms, born, store, again,
            prepared,
        ) = message  # fmt: skip
        own = options.store_host
        common = _common(topic, queue_id, sys_flag, born or own, store or own)
        if common is None or type(body) is not bytes or type(message) is not NewMessage:
            return None
        (
            queue, pack, magic, sys_flag, born_address, born_port, address, port, topic_part,
            beside,
        ) = common  # fmt: skip
        offset = next_offsets.get(queue)
        text, tag_code = (
            stored_properties(properties)
            if type(properties) is bytes
            else properties_of(properties)
        )
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
        record = b"".join((fixed, body, topic_part, _pack_length(text_bytes), text))
        unit = _pack_unit(end, size, tag_code)
    except (AttributeError, TypeError, ValueError, StructError):
        return None  # `prepare` reports the reason
    return queue, record, unit, _appended((offset, end, size, now_ms))


@lru_cache(KEPT_MAX)
def _common(topic: str, queue_id: int, sys_flag: int, born_host: Host, store_host: Host):  # noqa: ANN202
    """Return the encoded parts that messages with equal arguments share.

    None for those without a unit.
    """
    if sys_flag & TRANSACTION_MASK in WITHOUT_UNIT or sys_flag & INNER_BATCH:
        return None
    queue, magic, encoded = queue_of(topic, queue_id)
    born, store = host_of(born_host), host_of(store_host)
    sys_flag, layout = sys_flag_and_layout(sys_flag & ~HOST_BITS, born, store)
    shape = shape_of(magic, layout, encoded)
    beside = layout.body + shape.after_body_bytes
    places = (*born[:2], *store[:2])
    return (queue, layout.fixed.pack, magic, sys_flag, *places, shape.topic_part, beside)


_join_pair = NAME_END.join
_RECORD_END = b"\0" + PAIR_END.encode()
"""Separator of joined properties.

Usual stored properties have no zero byte, so a name after it begins as after a pair.
"""
_TAGS_OF_RECORD = re.compile(
    PAIR_END.encode() + TAGS_BEGIN + b"([^" + PAIR_END.encode() + b"\0]*)[^\0]*\0"
)


def plan_alike(
    end: int,
    next_offsets: Mapping[QueueId, int],
    messages: Sequence[NewMessage],
    *,
    now_ms: int,
    options: HotWriteOptions,
) -> AppendPlan | None:
    """Place messages after `end`, as `prepare` and `plan_append` would. None if they must do it.

    They must if messages differ in more than queue, body, properties and time of birth, if one is
    refused, or if they do not all go to the file of `end`. Costs some 1.5 us a message.
    """
    try:
        return _plan(end, next_offsets, messages, now_ms, options)
    except (AttributeError, TypeError, ValueError, StructError):
        return None  # `prepare` reports the message and the reason


def _plan(
    end: int,
    next_offsets: Mapping[QueueId, int],
    messages: Sequence[NewMessage],
    now_ms: int,
    options: HotWriteOptions,
) -> AppendPlan | None:
    columns: list[tuple[Any, ...]] = list(zip(*messages, strict=True))
    topics, queue_ids, bodies, properties, flags, sys_flags, born, *hosts_and_rest = columns
    born_hosts, store_hosts, reconsumed, transactions = hosts_and_rest
    for column in (topics, flags, sys_flags, *hosts_and_rest):
        if column.count(column[0]) != len(column):
            return None
    if set(map(type, bodies)) != {bytes}:  # `len` of other types may not count bytes
        return None
    encoded = _encoded(properties)
    is_special = sys_flags[0] & TRANSACTION_MASK in WITHOUT_UNIT or sys_flags[0] & INNER_BATCH
    if options.record_crc or encoded is None or is_special or topics[0] in options.own_topics:
        return None
    texts, closing, tag_codes = encoded
    queues = {queue_id: queue_of(topics[0], queue_id) for queue_id in set(queue_ids)}
    if bool in map(type, queues):
        return None
    _, magic, topic = queues[queue_ids[0]]
    born_host = _host(born_hosts[0], options)
    store_host = _host(store_hosts[0], options)
    sys_flag, layout = sys_flag_and_layout(sys_flags[0] & ~HOST_BITS, born_host, store_host)
    shape = shape_of(magic, layout, topic)
    body_lengths = list(map(len, bodies))
    lengths = [len(text) + len(closing) for text in texts]
    beside = layout.body + shape.after_body_bytes
    sizes = [beside + body + length for body, length in zip(body_lengths, lengths, strict=True)]
    *positions, new_end = accumulate(sizes, initial=end)
    left = options.commit_log_bytes - end % options.commit_log_bytes
    if (
        max(body_lengths) > options.message_bytes_max
        or max(lengths) > PROPERTIES_BYTES_MAX
        or new_end - end + BlankRecord.SIZE > left
    ):
        return None
    units = map(_pack_unit, positions, sizes, tag_codes)
    firsts = {one: next_offsets.get(queues[one][0], 0) for one in queues}
    offsets, units_of = _by_queue(queue_ids, units, firsts)
    fixed = map(
        layout.fixed.pack,
        *(sizes, repeat(magic), [crc & BODY_CRC_MASK for crc in map(crc32, bodies)]),
        *(queue_ids, repeat(flags[0]), offsets, positions, repeat(sys_flag)),
        [now_ms if moment is None else moment for moment in born],
        *map(repeat, (*born_host[:2], now_ms, *store_host[:2], reconsumed[0], transactions[0])),
        body_lengths,
    )
    after = map(_pack_length, lengths)
    parts = zip(fixed, bodies, repeat(shape.topic_part), after, texts, repeat(closing))
    file = FileAppend(end, [b"".join(chain.from_iterable(parts))])
    plan = AppendPlan([file], end=new_end)
    for one, mine in units_of.items():
        queue = queues[one][0]
        file.units[queue] = (firsts[one], bytearray(b"").join(mine))
        plan.next_offsets[queue] = firsts[one] + len(mine)
    places = zip(offsets, positions, sizes, repeat(now_ms))
    plan.appended = list(map(_appended, places))
    return plan


def _host(host: Host | None, options: HotWriteOptions) -> tuple[bytes, int, bool]:
    return host_of(host or options.store_host)


def _by_queue(
    queue_ids: Sequence[int], units: "map[bytes]", firsts: Mapping[int, int]
) -> tuple[Sequence[int], dict[int, list[bytes]]]:
    """Return the queue offset of each message, and the units of each queue."""
    if len(firsts) == 1:
        [(queue_id, first)] = firsts.items()
        return range(first, first + len(queue_ids)), {queue_id: list(units)}
    units_of: dict[int, list[bytes]] = {queue_id: [] for queue_id in firsts}
    offsets: list[int] = []
    for queue_id, unit in zip(queue_ids, units, strict=True):
        mine = units_of[queue_id]
        offsets.append(firsts[queue_id] + len(mine))
        mine.append(unit)
    return offsets, units_of


def _encoded(
    column: Sequence[Mapping[str, str] | bytes],
) -> tuple[Sequence[bytes], bytes, Sequence[int]] | None:
    """Return stored properties, the end of each, and tags codes. None if one is special."""
    if set(map(type, column)) == {bytes}:
        stored = cast("Sequence[bytes]", column)
        return stored, b"", _tag_codes(stored)
    maps = cast("Sequence[dict[str, str]]", column)
    if set(map(type, maps)) != {dict} or not all(maps):
        return None
    texts = [PAIR_END.join(map(_join_pair, one.items())) for one in maps]
    pairs, joined = sum(map(len, maps)), f"{PAIR_END}{PAIR_END.join(texts)}{PAIR_END}"
    is_plain = (
        joined.isascii()
        and joined.count(NAME_END) == pairs  # so none is within a name or a value
        and joined.count(PAIR_END) == pairs + 1
        and PAIR_END + NAME_END not in joined
        and NAME_END + PAIR_END not in joined
        and "\0" not in joined
    )
    if not is_plain:
        return None
    tag_codes = [tag_code_of(one.get(TAGS, "")) for one in maps]
    return list(map(str.encode, texts)), PAIR_END.encode(), tag_codes


def _tag_codes(stored: Sequence[bytes]) -> Sequence[int]:
    """Return the tags codes of stored properties; as `stored_properties`, which may refuse."""
    joined = _RECORD_END.join((b"", *stored, b""))
    tags = _TAGS_OF_RECORD.findall(joined)
    is_plain = (
        len(tags) == len(stored) == joined.count(TAGS_BEGIN)  # so each has them once
        and joined.count(b"\0") == len(stored) + 1
    )
    if not is_plain:
        return [stored_properties(raw)[1] for raw in stored]
    codes = {one: tag_code_of(one.decode("utf-8", "replace")) for one in set(tags)}
    return [codes[one] for one in tags]
