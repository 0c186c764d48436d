"""Calls and notes between two processes: order, results, errors, and the end of either."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from container.errors import Owned
from provider.errors import Corrupt, StoreError, Unavailable
from tieredstore.config.sources import ConfigError
from tieredstore.store.child.wire import Call, Failure, Note, Peer, encode, portable, read_frame


class OddError(Exception):
    """One that cannot be made of its text."""

    def __init__(self, *, of: str) -> None:
        super().__init__(f"odd {of}")


class Side:
    """One end, with what was noted to it and functions that the other end calls."""

    def __init__(self) -> None:
        self.noted: list[object] = []
        self.holds = asyncio.Event()
        self.peer: Peer | None = None

    async def double(self, number: int) -> int:
        return 2 * number

    async def fail(self, error: Exception) -> None:
        raise error

    async def odd(self) -> None:
        raise OddError(of="here")

    async def hold(self) -> str:
        await self.holds.wait()
        return "held"

    async def ask_back(self, number: int) -> object:
        assert self.peer is not None
        return await self.peer.call("double", number)

    @property
    def calls(self) -> dict[str, Callable[..., Awaitable[object]]]:
        return {name: getattr(self, name) for name in ("double", "fail", "odd", "hold", "ask_back")}


@asynccontextmanager
async def connected() -> AsyncGenerator[tuple[Side, Side]]:
    sides = Side(), Side()
    async with asyncio.TaskGroup() as group:
        tasks: list[asyncio.Task[None]] = []
        for side, end in zip(sides, socket.socketpair(), strict=True):
            streams = await asyncio.open_unix_connection(sock=end)
            side.peer = Peer(*streams, calls=side.calls, notes={"note": side.noted.append})
            tasks.append(group.create_task(side.peer.run()))
        yield sides
        for task in tasks:
            task.cancel()


async def test_both_ends_call_and_each_call_gets_its_own_result() -> None:
    async with connected() as (one, other):
        assert one.peer is not None
        assert other.peer is not None
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(one.peer.call("double", at)) for at in range(50)]
            calls += [group.create_task(other.peer.call("ask_back", at)) for at in range(50)]
        assert [call.result() for call in calls] == [2 * at for at in range(50)] * 2


async def test_notes_arrive_in_order_and_before_the_result_of_a_later_call() -> None:
    async with connected() as (one, other):
        assert one.peer is not None
        for number in range(200):
            one.peer.note("note", b"x" * 10_000 * (number % 3 == 0) + b"%d" % number)
        await one.peer.call("double", 1)
        assert [int(str(note)[2:-1].lstrip("x")) for note in other.noted] == list(range(200))


@pytest.mark.parametrize(
    "error",
    [Corrupt("torn", "a/b", 7), Owned("it lives", "tier"), ConfigError("no"), ValueError("wrong")],
)
async def test_an_error_is_raised_in_the_caller_as_it_is(error: Exception) -> None:
    async with connected() as (one, _):
        assert one.peer is not None
        with pytest.raises(type(error)) as raised:
            await one.peer.call("fail", error)
        assert (type(raised.value), raised.value.args) == (type(error), error.args)
        assert await one.peer.call("double", 4) == 8


async def test_an_error_that_cannot_be_sent_arrives_as_its_text() -> None:
    async with connected() as (one, _):
        assert one.peer is not None
        with pytest.raises(Unavailable, match="OddError: odd here"):
            await one.peer.call("odd")


def test_every_error_of_a_store_can_be_sent() -> None:
    kinds = [StoreError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    assert len(kinds) > 10
    for kind in kinds:
        found = portable(kind("why", "path", 3))
        assert (type(found), found.args) == (kind, ("why", "path", 3))


async def test_the_end_of_one_side_fails_the_calls_that_wait_and_stops_those_it_made() -> None:
    async with connected() as (one, other):
        assert one.peer is not None
        assert other.peer is not None
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(_raised(one.peer.call("hold")))
            await one.peer.call("double", 1)
            other.peer._writer.close()  # pyright: ignore[reportPrivateUsage] - as a process ends
        assert isinstance(waiting.result(), Unavailable)
        assert one.peer.is_over
        with pytest.raises(Unavailable, match="ended"):
            await one.peer.call("double", 1)
        one.peer.note("note", 1)  # no peer is there, and nothing fails


async def _raised(call: Awaitable[object]) -> Exception | None:
    try:
        await call
    except StoreError as error:
        return error
    return None


async def test_a_result_for_a_caller_that_was_cancelled_is_dropped() -> None:
    async with connected() as (one, other):
        assert one.peer is not None
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await one.peer.call("hold")
        other.holds.set()
        assert await one.peer.call("double", 3) == 6


async def test_finish_answers_the_calls_that_are_served() -> None:
    async with connected() as (one, other):
        assert one.peer is not None
        assert other.peer is not None
        async with asyncio.TaskGroup() as group:
            held = group.create_task(one.peer.call("hold"))
            await one.peer.call("double", 1)
            ending = group.create_task(other.peer.finish())
            other.holds.set()
        assert (held.result(), ending.done()) == ("held", True)


async def test_frames_are_read_as_written_and_a_torn_one_is_the_end() -> None:
    frames = [Note("a", (1, b"x" * 100_000)), Call(7, "b", ()), Failure(7, Corrupt("no", "p", 1))]
    written = b"".join(map(encode, frames))
    for end in (len(written), len(written) - 1, len(encode(frames[0])) + 3):
        reader = asyncio.StreamReader()
        reader.feed_data(written[:end])
        reader.feed_eof()
        found: list[object] = []
        while (frame := await read_frame(reader)) is not None:
            found.append(frame)
        assert [type(one) for one in found] == [type(one) for one in frames[: len(found)]]
        assert found[:2] == frames[: min(2, len(found))]
        assert len(found) == (3 if end == len(written) else 2 if end > len(written) - 2 else 1)
