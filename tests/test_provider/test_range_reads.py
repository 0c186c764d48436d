"""Near ranges in one request, long ones side by side, stragglers asked for twice: and how often."""

import asyncio
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provider.errors import NotFound, OutOfRange, Unavailable
from provider.object_store import Buffer
from provider.options import RangeOptions
from provider.ranges import ByteRange, pieces_of, together
from provider.stores.range_reads import RangeReads
from provider.stores.throttled import ThrottledStore, TransferLimits
from provider.testing.faulty import Fault, FaultyObjectStore
from provider.testing.manual_clock import ManualClock, settle
from provider.testing.memory import MemoryStore

KIB, MIB = 1 << 10, 1 << 20
BODY = Random(7).randbytes(1 << 16)

_ranges = st.builds(
    lambda start, length: ByteRange(start, start + length),
    st.integers(0, 40_000),
    st.integers(1, 20_000),
)
_wanted = st.lists(st.tuples(st.sampled_from(["a", "b"]), _ranges), max_size=12)


async def over(
    *faults: Fault, **options: float
) -> tuple[RangeReads, FaultyObjectStore, ManualClock]:
    clock = ManualClock()
    faulty = FaultyObjectStore(MemoryStore(), faults=faults, clock=clock)
    for name in ("a", "b"):
        await faulty.create(name, [BODY])
    ranged = RangeOptions(**options)  # pyright: ignore[reportArgumentType]
    return RangeReads(faulty, clock=clock, options=ranged), faulty, clock


@given(_wanted, st.integers(0, 5_000), st.integers(1, 30_000))
def test_every_range_is_in_one_request_that_keeps_both_limits(
    wanted: list[tuple[str, ByteRange]], gap_bytes_max: int, bytes_max: int
) -> None:
    plan = together(wanted, gap_bytes_max=gap_bytes_max, bytes_max=bytes_max)
    assert sorted(number for one in plan for number in one.members) == list(range(len(wanted)))
    for one in plan:
        parts = sorted((wanted[number][1] for number in one.members), key=lambda part: part.start)
        assert {wanted[number][0] for number in one.members} == {one.object_name}
        assert one.whole.start == parts[0].start
        assert one.whole.end == max(part.end for part in parts)
        assert len(parts) == 1 or one.whole.length <= bytes_max
        end = parts[0].end
        for part in parts:
            assert part.start - end <= gap_bytes_max
            end = max(end, part.end)


@given(_ranges, st.integers(1, 30_000))
def test_pieces_are_as_few_as_can_be_and_about_equal(whole: ByteRange, bytes_max: int) -> None:
    pieces = pieces_of(whole, bytes_max)
    lengths = [piece.length for piece in pieces]
    assert (pieces[0].start, pieces[-1].end, sum(lengths)) == (
        whole.start, whole.end, whole.length,
    )  # fmt: skip
    assert all(one.end == other.start for one, other in pairwise(pieces))
    assert max(lengths) <= bytes_max
    assert max(lengths) - min(lengths) <= 1
    assert len(pieces) == -(-whole.length // bytes_max)


@given(_wanted, st.integers(0, 5_000), st.integers(1, 30_000))
async def test_what_is_read_is_what_was_asked_for(
    wanted: list[tuple[str, ByteRange]], gap_bytes_max: int, request_bytes_max: int
) -> None:
    store, _, _ = await over(gap_bytes_max=gap_bytes_max, request_bytes_max=request_bytes_max)
    fitting = [(name, part) for name, part in wanted if part.end <= len(BODY)]
    found = await store.read_many(fitting)
    assert [bytes(one) for one in found] == [BODY[part.start : part.end] for _, part in fitting]


async def test_near_ranges_cost_one_request_and_far_ones_move_no_gap() -> None:
    store, faulty, _ = await over(gap_bytes_max=1_000)
    near = [("a", ByteRange(at, at + 500)) for at in range(0, 12_000, 1_500)]
    await store.read_many(near)
    assert (faulty.calls["read"], faulty.bytes["read"]) == (1, 11_000)
    far = [("a", ByteRange(at, at + 500)) for at in range(0, 12_000, 1_501)]
    await store.read_many(far)
    assert (faulty.calls["read"], faulty.bytes["read"]) == (1 + 8, 11_000 + 8 * 500)
    assert faulty.calls["size"] == 0, "nothing asks how long an object is before it reads"


class Meeting(MemoryStore):
    """Answers no read before so many of them are under way."""

    def __init__(self, wanted: int) -> None:
        super().__init__()
        self.barrier = asyncio.Barrier(wanted)

    async def read(self, name: str, wanted: ByteRange | None = None) -> Buffer:
        await self.barrier.wait()
        return await super().read(name, wanted)


async def test_pieces_of_a_long_range_and_several_objects_are_read_side_by_side() -> None:
    for wanted, requests in (
        ([("a", ByteRange(0, 60_000))], 6),
        ([("a", ByteRange(0, 10)), ("b", ByteRange(5, 20)), ("a", ByteRange(50_000, 50_001))], 3),
    ):
        memory = Meeting(requests)
        for name in ("a", "b"):
            await memory.create(name, [BODY])
        options = RangeOptions(request_bytes_max=10_000)
        store = RangeReads(memory, clock=ManualClock(), options=options)
        async with asyncio.timeout(10):
            found = await store.read_many(wanted)
        assert [bytes(one) for one in found] == [BODY[part.start : part.end] for _, part in wanted]


@pytest.mark.parametrize("hedge_after_s", [0.0, 1.0])
async def test_errors_are_those_of_the_store(hedge_after_s: float) -> None:
    store, _, _ = await over(request_bytes_max=10_000, hedge_after_s=hedge_after_s)
    with pytest.raises(NotFound):
        await store.read("absent", ByteRange(0, 1))
    with pytest.raises(OutOfRange):
        await store.read_many([("a", ByteRange(0, 1)), ("a", ByteRange(60_000, 70_000))])
    assert bytes(await store.read("a")) == BODY


async def test_a_straggler_is_overtaken_and_a_quick_answer_is_asked_for_once() -> None:
    late = Fault("delayed", "read", calls=(2,), delay_s=30)
    store, faulty, clock = await over(late, hedge_after_s=1.0)
    assert bytes(await store.read("a", ByteRange(0, 10))) == BODY[:10]
    task = asyncio.ensure_future(store.read("a", ByteRange(0, 10)))
    await settle()
    await clock.advance(0.9)
    assert faulty.calls["read"] == 2
    await clock.advance(0.2)
    assert bytes(await task) == BODY[:10]
    assert (faulty.calls["read"], store.requests, store.hedges, store.hedges_won) == (3, 2, 1, 1)
    await settle()
    assert clock.sleeping == 0, "the slow one is cancelled"


async def test_the_first_answer_counts_also_if_it_is_the_slow_ones() -> None:
    late = Fault("delayed", "read", calls=(1,), delay_s=2)
    later = Fault("delayed", "read", calls=(2,), delay_s=30)
    store, _, clock = await over(late, later, hedge_after_s=1.0)
    task = asyncio.ensure_future(store.read("a", ByteRange(0, 10)))
    for _ in range(5):
        await clock.advance(0.5)
    assert bytes(await task) == BODY[:10]
    assert (store.hedges, store.hedges_won) == (1, 0)


async def test_an_error_waits_for_the_other_request_and_is_raised_if_both_fail() -> None:
    slow = Fault("delayed", "read", calls=(1, 3), delay_s=2)
    refused = Fault("refused", "read", calls=(2,))
    store, faulty, clock = await over(slow, refused, hedge_after_s=1.0)
    task = asyncio.ensure_future(store.read("a", ByteRange(0, 10)))
    for _ in range(6):
        await clock.advance(0.5)
    assert bytes(await task) == BODY[:10]
    assert store.hedges == 1
    faulty.faults = [Fault("refused", "read")]
    with pytest.raises(Unavailable):
        await store.read("a", ByteRange(0, 10))
    assert store.hedges == 1, "an answer that failed at once is no straggler"


async def test_second_requests_are_a_bounded_share() -> None:
    store, faulty, clock = await over(
        Fault("delayed", "read", delay_s=5), hedge_after_s=1.0, hedge_share_max=0.1
    )
    tasks = [asyncio.ensure_future(store.read("a", ByteRange(at, at + 1))) for at in range(50)]
    for _ in range(20):
        await clock.advance(0.5)
    assert [bytes(await task) for task in tasks] == [BODY[at : at + 1] for at in range(50)]
    assert (store.requests, store.hedges) == (50, 1 + 5 - 0)
    assert faulty.calls["read"] == 56


async def test_cancelling_leaves_no_request_behind() -> None:
    store, _, clock = await over(Fault("delayed", "read", delay_s=50), hedge_after_s=1.0)
    task = asyncio.ensure_future(store.read("a", ByteRange(0, 10)))
    await settle()
    await clock.advance(2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await settle()
    assert clock.sleeping == 0


async def test_a_wait_for_a_limit_uses_up_no_second_request() -> None:
    clock = ManualClock()
    memory = MemoryStore()
    await memory.create("a", [BODY])
    limits = TransferLimits(download_bytes_per_s=1000)
    throttled = ThrottledStore(memory, clock=clock, limits=limits)
    store = RangeReads(
        throttled, clock=clock, options=RangeOptions(hedge_after_s=1), ranges_of=memory,
        turn=throttled.downloads.take,
    )  # fmt: skip
    reads = [asyncio.ensure_future(store.read("a", ByteRange(0, 5000))) for _ in range(4)]
    while not all(read.done() for read in reads):
        await settle()
        await clock.advance(0.5)
    assert (store.requests, store.hedges) == (4, 0)
    assert clock.monotonic_s() >= 3 * 5 - 1
