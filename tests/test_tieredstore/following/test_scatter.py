"""Reading into many places equals reading at once and dealing out, wherever the file ends."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.following.log.mapped_files import PLACES_A_CALL_MAX, SKIPPED, Places

LENGTHS = st.lists(st.integers(0, 50), min_size=1, max_size=40)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scatter") / "file"
    path.write_bytes(np.random.default_rng(1).integers(0, 256, 40_000, np.uint8).tobytes())
    return path


def filled(
    path: Path, position: int, lengths: list[int], order: list[int], skipped: set[int]
) -> tuple[int, list[bytes]]:
    """How much was read, and what each place holds; places lie in the buffer in `order`."""
    starts, end = [0] * len(lengths), 0
    for place in order:
        starts[place], end = end, end + lengths[place]
    buffer = np.full(end, 0xEE, np.uint8)
    wanted = np.array([SKIPPED if n in skipped else at for n, at in enumerate(starts)])
    places = Places(buffer, wanted, np.array(lengths))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        count = places.fill(descriptor, position, sum(lengths), 0, len(places))
    finally:
        os.close(descriptor)
    rows = zip(starts, lengths, strict=True)
    return count, [buffer[start : start + length].tobytes() for start, length in rows]


@given(st.data(), LENGTHS, st.integers(0, 300))
def test_every_place_gets_its_part_up_to_the_files_end(
    path: Path, data: st.DataObject, lengths: list[int], before_end: int
) -> None:
    raw = path.read_bytes()
    position = len(raw) - before_end
    order = data.draw(st.permutations(range(len(lengths))))
    skipped = data.draw(st.sets(st.sampled_from(range(len(lengths)))))
    count, places = filled(path, position, lengths, list(order), skipped)
    assert count == min(before_end, sum(lengths))
    at = position
    for number, (length, place) in enumerate(zip(lengths, places, strict=True)):
        expected = b"" if number in skipped else raw[at : at + length]
        assert place == expected.ljust(length, b"\xee")
        at += length


def test_more_places_than_a_call_takes(path: Path) -> None:
    raw = path.read_bytes()
    count = 3 * PLACES_A_CALL_MAX + 7
    length, places = filled(path, 5, [9] * count, list(range(count))[::-1], {count - 1})
    assert length == 9 * count
    assert b"".join(places[:-1]) == raw[5 : 5 + 9 * (count - 1)]


def test_a_part_of_the_places_is_filled(path: Path) -> None:
    buffer = np.zeros(30, np.uint8)
    places = Places(buffer, np.array([20, 0, 10]), np.array([10, 10, 10]))
    with path.open("rb") as file:
        assert places.fill(file.fileno(), 100, 20, 1, 3) == 20
        assert buffer.tobytes() == file.read(120)[100:] + bytes(10)


def test_an_error_of_the_system_is_raised(tmp_path: Path) -> None:
    places = Places(np.zeros(5, np.uint8), np.array([0]), np.array([5]))
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with pytest.raises(IsADirectoryError):
            places.fill(descriptor, 0, 5, 0, 1)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(("start", "length"), [(0, 11), (5, 6), (-2, 1), (3, -1)])
def test_no_place_lies_outside_the_buffer(start: int, length: int) -> None:
    with pytest.raises(AssertionError):
        Places(np.zeros(10, np.uint8), np.array([start]), np.array([length]))
