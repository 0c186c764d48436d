"""Messages that have most in common are placed just as one by one; others are left to that."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.names.queue_id import QueueId
from container.record.header import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from container.record.properties import encode_properties
from tieredstore.hot.batch_plan import plan_alike
from tieredstore.hot.encoding import AppendPlan, MessageRefused, NewMessage, plan_append, prepare
from tieredstore.hot.options import HotWriteOptions

OPTIONS = HotWriteOptions(commit_log_bytes=1 << 16, message_bytes_max=4096)
NOW_MS = 1_700_000_000_123
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(
    ["TAGS", "KEYS", "TagA", "\x01", "\x02", "\0", "a\ud800", "ü"]
)
MAPS = st.dictionaries(TEXTS, TEXTS, max_size=4)
STORED = st.one_of(
    st.binary(max_size=30),
    st.dictionaries(st.sampled_from(["TAGS", "XTAGS", "k"]), st.text("ab", min_size=1)).map(
        encode_properties
    ),
    st.lists(st.sampled_from([b"TAGS", b"\x01", b"\x02", b"a", b"\xff"])).map(b"".join),
)
PLAIN = st.fixed_dictionaries(
    {"KEYS": st.text("kv", min_size=1), "TAGS": st.text("ab", min_size=1)}
)


def one_by_one(
    end: int, offsets: dict[QueueId, int], messages: list[NewMessage], options: HotWriteOptions
) -> AppendPlan:
    prepared = [prepare(message, NOW_MS, options) for message in messages]
    return plan_append(
        end,
        offsets,
        prepared,
        file_bytes=options.commit_log_bytes,
        record_crc=options.record_crc,
    )


def alike(
    messages: list[NewMessage],
    end: int = 0,
    offsets: dict[QueueId, int] | None = None,
    options: HotWriteOptions = OPTIONS,
) -> AppendPlan | None:
    return plan_alike(end, offsets or {}, messages, now_ms=NOW_MS, options=options)


def written(plan: AppendPlan) -> tuple[Any, ...]:
    files = [(file.position, b"".join(file.parts), file.units) for file in plan.files]
    return files, plan.appended, plan.next_offsets, plan.end


@given(
    st.integers(0, 1 << 17),
    st.dictionaries(st.integers(0, 3), st.integers(0, 1 << 40)),
    st.one_of(
        *(
            st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=40), kind), min_size=1)
            for kind in (PLAIN, MAPS, STORED, MAPS | STORED)
        )
    ),
    st.fixed_dictionaries(
        {},
        optional={
            "topic": st.sampled_from(["Orders", "x" * 200, "Töpfe"]),
            "flag": st.integers(-5, 5),
            "sys_flag": st.sampled_from([0, 1, TRANSACTION_COMMIT, 0x30]),
            "born_timestamp": st.integers(0, 1 << 41),
            "born_host": st.sampled_from([("10.0.0.1", 77), ("::1", 78)]),
            "store_host": st.sampled_from([("10.0.0.2", 79), ("fe80::1", 80)]),
            "reconsume_times": st.integers(0, 3),
            "prepared_transaction_offset": st.integers(0, 1 << 40),
        },
    ),
)
def test_it_makes_what_one_by_one_makes_or_nothing(
    end: int,
    offsets: dict[int, int],
    given_messages: list[tuple[int, bytes, dict[str, str] | bytes]],
    fields: dict[str, Any],
) -> None:
    fields = {"topic": "Orders", **fields}
    messages = [
        NewMessage(queue_id=queue_id, body=body, properties=properties, **fields)
        for queue_id, body, properties in given_messages
    ]
    known = {QueueId(fields["topic"], one): offset for one, offset in offsets.items()}
    before = dict(known)
    plan = alike(messages, end, known)
    assert known == before, "a plan changes nothing"
    if plan is None:
        return
    assert written(plan) == written(one_by_one(end, known, messages, OPTIONS))


def message(number: int, **fields: Any) -> NewMessage:
    properties = {"KEYS": f"key-{number}", "TAGS": "AB"[number % 2]}
    return NewMessage("Orders", number % 3, b"body %d" % number, properties)._replace(**fields)


USUAL = [message(number) for number in range(9)]


@pytest.mark.parametrize(
    "messages",
    [
        USUAL,
        [one._replace(properties=encode_properties(dict(one.properties))) for one in USUAL],  # type: ignore[arg-type]
        [one._replace(properties=b"") for one in USUAL],
        [one._replace(queue_id=5) for one in USUAL],
        [one._replace(born_timestamp=number) for number, one in enumerate(USUAL)],
    ],
    ids=["maps", "stored", "none", "one queue", "born"],
)
def test_the_usual_is_not_left_to_one_by_one(messages: list[NewMessage]) -> None:
    plan = alike(messages, 1000)
    assert plan is not None
    assert written(plan) == written(one_by_one(1000, {}, messages, OPTIONS))


@pytest.mark.parametrize(
    "odd",
    [
        {"topic": "Others"},
        {"flag": 1},
        {"born_host": ("::1", 1)},
        {"properties": {"KEYS": ""}},
        {"properties": {"KEYS": "a\x01b"}},
        {"properties": {}},
    ],
    ids=str,
)
def test_what_differs_is_left_to_one_by_one(odd: dict[str, Any]) -> None:
    assert alike([*USUAL, message(9, **odd)]) is None


@pytest.mark.parametrize(
    "bad",
    [
        {"body": None},
        {"body": "text"},
        {"body": bytes(4097)},
        {"queue_id": -1},
        {"properties": {"a\x01b": "c"}},
        {"properties": {"a": "x" * 32767}},
        {"properties": b"a\x01b\0"},
        {"born_timestamp": 1 << 63},
        {"flag": 1 << 31},
        {"sys_flag": TRANSACTION_PREPARED},
        {"sys_flag": TRANSACTION_ROLLBACK},
    ],
    ids=str,
)
def test_what_is_refused_is_left_to_who_says_why(bad: dict[str, Any]) -> None:
    assert alike([*USUAL, message(9, **bad)]) is None
    assert alike([message(number, **bad) for number in range(4)]) is None
    with pytest.raises((MessageRefused, TypeError)):
        prepare(message(9, **bad), NOW_MS, OPTIONS)


def test_what_does_not_fit_its_file_is_left_to_one_by_one() -> None:
    total = one_by_one(0, {}, USUAL, OPTIONS).end
    last = OPTIONS.commit_log_bytes - total - 8
    plan = alike(USUAL, last)
    assert plan is not None
    assert plan.end == OPTIONS.commit_log_bytes - 8
    assert alike(USUAL, last + 1) is None
    assert alike(USUAL, options=HotWriteOptions(record_crc=True)) is None
