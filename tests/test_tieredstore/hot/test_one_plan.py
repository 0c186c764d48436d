"""One message is placed just as `prepare` and `plan_append` place it; odd ones are left to them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.names.queue_id import QueueId
from container.record.header import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from tests.test_tieredstore.hot.test_alike_plan import MAPS, NOW_MS, OPTIONS, STORED, one_by_one
from tieredstore.hot.batch_plan import OnePlan, plan_one
from tieredstore.hot.encoding import Appended, MessageRefused, NewMessage, prepare
from tieredstore.hot.options import HotWriteOptions

KNOWN = {QueueId("Orders", 1): 7}
USUAL = NewMessage("Orders", 1, b"body", {"KEYS": "key", "TAGS": "A"})


def one(
    message: NewMessage,
    end: int = 1000,
    known: dict[QueueId, int] | None = None,
    options: HotWriteOptions = OPTIONS,
) -> OnePlan | None:
    offsets = KNOWN if known is None else known
    return plan_one(end, offsets, message, NOW_MS, options)


def assert_same(plan: OnePlan, message: NewMessage, end: int, known: dict[QueueId, int]) -> None:
    other = one_by_one(end, known, [message], OPTIONS)
    [file] = other.files
    queue, record, unit, appended = plan
    assert (file.position, b"".join(file.parts)) == (appended.position, record)
    assert file.units == {queue: (appended.queue_offset, unit)}
    assert other.appended == [appended]
    assert isinstance(appended, Appended)
    assert other.next_offsets == {queue: appended.queue_offset + 1}
    assert other.end == appended.position + appended.size


@pytest.mark.slow
@given(
    st.integers(0, 1 << 17),
    st.dictionaries(st.integers(0, 3), st.integers(0, 1 << 40)),
    st.tuples(st.integers(0, 3), st.binary(max_size=40), MAPS | STORED),
    st.fixed_dictionaries(
        {},
        optional={
            "topic": st.sampled_from(["Orders", "x" * 200, "Töpfe"]),
            "flag": st.integers(-5, 5),
            "sys_flag": st.sampled_from([0, 1, TRANSACTION_COMMIT, TRANSACTION_PREPARED, 0x30]),
            "born_timestamp": st.integers(0, 1 << 41),
            "born_host": st.sampled_from([("10.0.0.1", 77), ("::1", 78)]),
            "store_host": st.sampled_from([("10.0.0.2", 79), ("fe80::1", 80)]),
            "reconsume_times": st.integers(0, 3),
            "prepared_transaction_offset": st.integers(0, 1 << 40),
        },
    ),
)
def test_it_makes_what_the_others_make_or_nothing(
    end: int,
    offsets: dict[int, int],
    given_message: tuple[int, bytes, dict[str, str] | bytes],
    fields: dict[str, Any],
) -> None:
    fields = {"topic": "Orders", **fields}
    queue_id, body, properties = given_message
    message = NewMessage(queue_id=queue_id, body=body, properties=properties, **fields)
    known = {QueueId(fields["topic"], one): offset for one, offset in offsets.items()}
    plan = one(message, end, known)
    if plan is not None:
        assert_same(plan, message, end, known)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"properties": b""},
        {"properties": b"KEYS\x01key\x02TAGS\x01A\x02"},
        {"properties": {}},
        {"body": b""},
        {"flag": 3, "born_timestamp": 5},
        {"born_host": ("::1", 1), "store_host": ("10.0.0.1", 2)},
    ],
    ids=str,
)
def test_the_usual_is_not_left_to_the_others(fields: dict[str, Any]) -> None:
    message = USUAL._replace(**fields)
    plan = one(message)
    assert plan is not None
    assert_same(plan, message, 1000, KNOWN)


@pytest.mark.parametrize(
    "odd",
    [
        {"queue_id": 2},
        {"body": bytearray(b"changes later")},
    ],
    ids=str,
)
def test_what_is_odd_is_left_to_the_others(odd: dict[str, Any]) -> None:
    assert one(USUAL._replace(**odd)) is None


@pytest.mark.parametrize(
    "bad",
    [
        {"body": None},
        {"body": "text"},
        {"body": bytes(4097)},
        {"topic": None},
        {"topic": ["Orders"]},
        {"topic": ".."},
        {"queue_id": -1},
        {"queue_id": "1"},
        {"properties": None},
        {"properties": {"a\x01b": "c"}},
        {"properties": {"a": "x" * 32767}},
        {"properties": b"a\x01b\0"},
        {"born_host": ("localhost", 1)},
        {"born_timestamp": 1 << 63},
        {"flag": 1 << 31},
        {"sys_flag": TRANSACTION_PREPARED},
        {"sys_flag": TRANSACTION_ROLLBACK},
    ],
    ids=str,
)
def test_what_is_refused_is_left_to_who_says_why(bad: dict[str, Any]) -> None:
    message = USUAL._replace(**bad)
    assert one(message) is None
    with pytest.raises((MessageRefused, TypeError)):
        prepare(message, NOW_MS, OPTIONS)


def test_what_does_not_fit_its_file_is_left_to_the_others() -> None:
    plan = one(USUAL)
    assert plan is not None
    last = OPTIONS.commit_log_bytes - plan[3].size - 8
    assert one(USUAL, last) is not None
    assert one(USUAL, last + 1) is None
    assert one(USUAL, options=HotWriteOptions(record_crc=True)) is None
    assert one(tuple(USUAL)) is None  # type: ignore[arg-type]
