"""The keys of a batch equal those of its messages, one by one."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from container.index import keys
from container.index.keys import has_key, index_key, items_of_records, keys_of_records
from container.record.batch import MessageBatch
from container.record.message import StoredMessage
from container.record.properties import KEYS, UNIQ_KEY, index_keys, java_hash, key_hash
from tests.support.messages import batch_of, make_message, make_record, queue_records

_KEY = st.text("ab é漢😀#\x01\x03", max_size=6)
_ODD_PIECES = [
    b"KEYS\1a b",
    b"KEYS\1",
    b"KEYS",
    b"UNIQ_KEY\1u",
    b"UNIQ_KEY\1\xff\xfe",
    b"",
    b"\1x",
    b"KEYS\1\xe6 a",
]
_VALUE = st.lists(_KEY, max_size=4).map(" ".join)


@pytest.fixture(autouse=True, params=[0, keys.FEW_MESSAGES], ids=["together", "few one by one"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "FEW_MESSAGES", request.param)


def rows(batch: MessageBatch, topic: str) -> list[tuple[int, int, int]]:
    found = keys_of_records(batch.data, batch.starts, batch.sizes, topic=topic)
    return list(zip(*(column.tolist() for column in found), strict=True))


def rows_one_by_one(records: list[bytes], topic: str) -> list[tuple[int, int, int]]:
    messages = [StoredMessage.decode(raw, path="", position=0) for raw in records]
    return [
        (number, ordinal, key_hash(index_key(topic, key)))
        for number, message in enumerate(messages)
        for ordinal, key in enumerate(index_keys(message.property_map))
    ]


@settings(max_examples=25)
@given(queue_records())
def test_of_any_records(records: list[bytes]) -> None:
    topic = StoredMessage.decode(records[0], path="", position=0).topic
    assert rows(batch_of(records), topic) == rows_one_by_one(records, topic)


@settings(max_examples=25)
@given(
    st.lists(
        st.dictionaries(st.sampled_from([KEYS, UNIQ_KEY, "TAGS", "KEYS2", "XKEYS"]), _VALUE),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from(["T", "漢", "a" * 60]),
)
def test_of_properties_with_keys(maps: list[dict[str, str]], topic: str) -> None:
    records = [make_record(topic, 0, n, properties=one) for n, one in enumerate(maps)]
    assert rows(batch_of(records), topic) == rows_one_by_one(records, topic)


@settings(max_examples=25)
@given(
    st.lists(
        st.lists(st.sampled_from(_ODD_PIECES), max_size=5).map(b"\2".join), min_size=1, max_size=5
    )
)
def test_of_properties_as_they_should_not_be(properties: list[bytes]) -> None:
    records = [
        StoredMessage.compose("T", 0, n, properties=raw).encode()
        for n, raw in enumerate(properties)
    ]
    assert rows(batch_of(records), "T") == rows_one_by_one(records, "T")


def test_a_hash_that_has_no_absolute_value_is_0() -> None:
    key = next(found for n in range(10_000) if (found := _completed(f"T#{n**3}")))
    assert java_hash(key) == -(2**31)
    records = [make_record("T", 0, 0, properties={KEYS: key.removeprefix("T#")})]
    assert rows(batch_of(records), "T") == [(0, 0, 0)]


def _completed(text: str) -> str:
    """`text` and three characters, so that the hash is the smallest number; "" if none give it."""
    wanted = (2**31 - java_hash(text) * 31**3) & 0xFFFF_FFFF
    first = wanted // 961 - 60
    second, third = divmod(wanted - 961 * first, 31)
    fits = 0 < first < 0xD800
    return text + chr(first) + chr(second - 2) + chr(third + 62) if fits else ""


@settings(max_examples=5)
@given(queue_records(count_max=40))
def test_many_messages_are_like_few(records: list[bytes]) -> None:
    topic = StoredMessage.decode(records[0], path="", position=0).topic
    assert rows(batch_of(records), topic) == rows_one_by_one(records, topic)


def test_long_keys_are_hashed_within_bounds() -> None:
    records = [make_record("T", 0, n, properties={KEYS: "k" * 30_000 + str(n)}) for n in range(20)]
    assert rows(batch_of(records), "T") == rows_one_by_one(records, "T")


def test_items_have_the_places_of_their_messages() -> None:
    records = [
        make_record("T", 5, 0, properties={KEYS: "a b", UNIQ_KEY: "u"}, store_timestamp=77),
        make_record("T", 5, 1, store_timestamp=78),
        make_record("T", 5, 2, properties={KEYS: "b b"}, store_timestamp=79),
    ]
    batch = batch_of(records)
    items = items_of_records(
        batch.data,
        batch.starts,
        batch.sizes,
        topic="T",
        queue_id=5,
        positions=batch.starts + 1000,
        store_timestamps=batch.store_timestamps,
    )
    third = len(records[0]) + len(records[1])
    assert items[["queue_id", "ordinal", "position", "store_timestamp", "size"]].tolist() == [
        (5, 0, 1000, 77, len(records[0])),
        (5, 1, 1000, 77, len(records[0])),
        (5, 2, 1000, 77, len(records[0])),
        (5, 0, 1000 + third, 79, len(records[2])),
    ]
    assert items["key_hash"].tolist() == [key_hash(f"T#{k}") for k in ("u", "a", "b", "b")]


@pytest.mark.parametrize(
    ("key", "has"), [("a", True), ("b", True), ("", False), ("a b", False), ("u v", True)]
)
def test_a_message_says_itself_which_keys_it_has(key: str, has: bool) -> None:  # noqa: FBT001
    message = make_message(0, properties={KEYS: "a  b", UNIQ_KEY: "u v"})
    assert has_key(message, key) is has


def test_no_messages_have_no_keys() -> None:
    none = np.empty(0, np.int64)
    found = keys_of_records(np.empty(0, np.uint8), none, none, topic="T")
    assert len(found.messages) == 0


_ALIKE = st.tuples(
    st.sampled_from(["order-%05d", "%03d %03d", "k%01d", "é%02d", "%02d%02d a", "same same"]),
    st.sampled_from(["7F0000%06d", "u%03d", ""]),
    st.sampled_from(["TagA", "TagB", "T\x01", ""]),
)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(_ALIKE, st.integers(1, 40)), min_size=1, max_size=3),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_of_messages_that_look_alike_and_of_some_between(
    kinds: list[tuple[tuple[str, str, str], int]],
    mixed: bool,  # noqa: FBT001 - drawn
    chance: Random,
) -> None:
    maps: list[dict[str, str]] = []
    for (users, unique, tags), count in kinds:
        for _ in range(count):
            numbers = chance.randrange(10), chance.randrange(10)
            fill = numbers if users.count("%") > 1 else numbers[: users.count("%")]
            one = {KEYS: users % fill, "TAGS": tags}
            one[UNIQ_KEY] = unique % numbers[: unique.count("%")]
            one[chance.choice(["seq", "Seq"])] = str(numbers[1])
            maps.append(one)
    if mixed:
        chance.shuffle(maps)
    records = [
        StoredMessage.compose("T", 0, n, properties=raw_properties(one)).encode()
        for n, one in enumerate(maps)
    ]
    assert rows(batch_of(records), "T") == rows_one_by_one(records, "T")


def raw_properties(properties: dict[str, str]) -> bytes:
    """As they are stored, whatever they hold."""
    return "".join(f"{name}\1{value}\2" for name, value in properties.items()).encode()
