"""Where messages go: the end of a file by RocketMQ's rule, and offsets by queue."""

from hypothesis import given
from hypothesis import strategies as st

from container.names.queue_id import QueueId
from container.record.header import BlankRecord
from tests.support.hot_store import new_message
from tieredstore.hot.encoding import Prepared, kept_together, plan_append, prepare
from tieredstore.hot.options import HotWriteOptions

FILE_BYTES = 1000
OPTIONS = HotWriteOptions(commit_log_bytes=FILE_BYTES)
QUEUE = QueueId("Orders", 0)


def prepared(size: int, number: int = 0, queue_id: int = 0) -> Prepared:
    least = prepare(new_message(number, queue_id=queue_id, body_bytes=0), 1, OPTIONS).size
    message = new_message(number, queue_id=queue_id, body_bytes=0)
    return prepare(message._replace(body=message.body + bytes(size - least)), 1, OPTIONS)


def test_a_record_that_leaves_8_bytes_stays_and_one_that_leaves_7_goes_on() -> None:
    stays = plan_append(500, {}, [prepared(492)], file_bytes=FILE_BYTES)
    assert [file.position for file in stays.files] == [500]
    assert stays.end == 992
    goes = plan_append(500, {}, [prepared(493)], file_bytes=FILE_BYTES)
    assert [file.position for file in goes.files] == [500, 1000]
    assert b"".join(goes.files[0].parts) == BlankRecord(500).encode()
    assert goes.files[0].units == {}
    assert goes.appended[0].position == 1000
    assert goes.end == 1493


def test_after_8_bytes_that_are_left_the_blank_record_fills_the_file() -> None:
    plan = plan_append(992, {}, [prepared(200)], file_bytes=FILE_BYTES)
    assert b"".join(plan.files[0].parts) == BlankRecord(8).encode()
    assert plan.appended[0].position == 1000


def test_what_is_kept_together_goes_on_as_one() -> None:
    batch = [prepared(200, number) for number in range(3)]
    alone = plan_append(500, {}, batch, file_bytes=FILE_BYTES)
    assert [place.position for place in alone.appended] == [500, 700, 1000]
    batch = kept_together([prepared(200, number) for number in range(3)], OPTIONS)
    together = plan_append(500, {}, batch, file_bytes=FILE_BYTES)
    assert [place.position for place in together.appended] == [1000, 1200, 1400]


@given(
    st.integers(0, 5000),
    st.lists(st.tuples(st.integers(140, 992), st.integers(0, 2)), min_size=1, max_size=20),
    st.dictionaries(st.integers(0, 2), st.integers(0, 100)),
)
def test_no_record_spans_two_files_and_each_queue_counts(
    start: int, sizes: list[tuple[int, int]], before: dict[int, int]
) -> None:
    start -= start % FILE_BYTES > FILE_BYTES - 8 and 8
    offsets = {QueueId("Orders", queue_id): offset for queue_id, offset in before.items()}
    known = dict(offsets)
    records = [prepared(size, n, queue_id) for n, (size, queue_id) in enumerate(sizes)]
    plan = plan_append(start, offsets, records, file_bytes=FILE_BYTES)
    assert offsets == known, "a plan changes nothing"
    end = start
    for record, place in zip(records, plan.appended, strict=True):
        assert place.position >= end
        assert place.position == end or place.position % FILE_BYTES == 0
        assert place.position % FILE_BYTES + place.size <= FILE_BYTES - 8
        assert place.queue_offset == known.get(record.queue, 0)
        known[record.queue] = place.queue_offset + 1
        end = place.position + place.size
    assert plan.end == end
    assert {**offsets, **plan.next_offsets} == known
    for file in plan.files[1:]:
        assert file.position % FILE_BYTES == 0
    for one, after in zip(plan.files, plan.files[1:], strict=False):
        written = len(b"".join(one.parts))
        left = after.position - one.position - written + 8
        assert b"".join(one.parts)[-8:] == BlankRecord(left).encode()
