"""Lines come as they are written, bounded, and can be given up at any time."""

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.patience import HANGS_AFTER_S
from tieredstore.cli.appending import CHUNK_BYTES, InputLines, LineTooLongError


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ours, theirs = os.pipe()
    yield ours, theirs
    with suppress(OSError):
        os.close(theirs)
    for thread in threading.enumerate():
        if thread.name == "input":  # else it might read from what has this number next
            thread.join(HANGS_AFTER_S)
    os.close(ours)


async def test_lines_come_when_they_are_written_and_the_last_may_lack_its_end(
    pipe: tuple[int, int],
) -> None:
    ours, theirs = pipe
    found = InputLines(ours, line_bytes_max=100).batches()
    os.write(theirs, b"one\ntwo\nthr")
    assert await anext(found) == [b"one", b"two"]
    os.write(theirs, b"ee\n\nfour")
    assert await anext(found) == [b"three", b""]
    os.close(theirs)
    assert await anext(found) == [b"four"]
    with pytest.raises(StopAsyncIteration):
        await anext(found)


async def test_a_file_is_read_in_bounded_pieces(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"%07d\n" % n for n in range(200_000)))
    fd = os.open(path, os.O_RDONLY)
    try:
        batches = [one async for one in InputLines(fd, line_bytes_max=100).batches()]
    finally:
        os.close(fd)
    assert [line for one in batches for line in one] == [b"%07d" % n for n in range(200_000)]
    assert max(sum(map(len, one)) for one in batches) <= CHUNK_BYTES


async def test_a_line_without_an_end_is_refused_behind_those_before_it(
    pipe: tuple[int, int],
) -> None:
    ours, theirs = pipe
    found = InputLines(ours, line_bytes_max=10).batches()
    os.write(theirs, b"one\n" + b"x" * 11)
    assert await anext(found) == [b"one"]
    with pytest.raises(LineTooLongError, match="more than 10 bytes"):
        await anext(found)


async def test_a_read_that_waits_can_be_given_up(pipe: tuple[int, int]) -> None:
    ours, theirs = pipe
    lines = InputLines(ours, line_bytes_max=10)
    os.write(theirs, b"one\n")
    found = lines.batches()
    assert await anext(found) == [b"one"]
    async with asyncio.timeout(HANGS_AFTER_S):
        lines.end()
        assert [one async for one in found] == []


async def test_an_input_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(IsADirectoryError):
            await anext(InputLines(fd, line_bytes_max=10).batches())
    finally:
        os.close(fd)
