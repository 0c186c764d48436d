"""Memory of large buffers: reused when, and only when, no view of it is left."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from provider.posix.files import BufferPool, rounded

MIB = 1 << 20
VIEWS: dict[str, Callable[[Any], object]] = {
    "a slice": lambda data: data[10:20],
    "a memoryview": lambda data: data.data,
    "a slice's memoryview": lambda data: data[5:].data[3:9],
    "another dtype": lambda data: data[:16].view(">i8"),
    "a byte-strided array": lambda data: np.ndarray((100,), ">i8", data, strides=(1,)),
    "an array over a memoryview": lambda data: np.frombuffer(data.data, np.uint8),
    "an Arrow buffer": pa.py_buffer,
}


@pytest.mark.parametrize("make", VIEWS.values(), ids=VIEWS)
def test_a_buffer_comes_back_only_when_its_last_view_is_gone(
    make: Callable[[Any], object],
) -> None:
    buffers = BufferPool(8 * MIB)
    data = buffers.take(MIB)
    view = make(data)
    del data
    assert buffers.free_bytes == 0
    del view
    assert buffers.free_bytes == MIB


def test_the_next_batch_of_about_that_size_uses_the_same_memory() -> None:
    buffers = BufferPool(8 * MIB)
    for length in (MIB, MIB - 1, MIB, MIB // 2 + 1):
        data = buffers.take(length)
        assert len(data) == length
        data[:] = 7
        del data
    assert buffers.made == 1


def test_where_memory_is_counted_a_buffer_has_little_more_than_was_asked_for() -> None:
    buffers = BufferPool(8 * MIB, oversize_max=1)
    large = buffers.take(MIB)
    del large
    small = buffers.take(MIB // 2 + 1)
    assert small.base is not None
    assert small.base.nbytes <= (MIB // 2 + 1) * 5 // 4
    assert buffers.made == 2


def test_two_at_a_time_are_never_the_same_memory() -> None:
    buffers = BufferPool(8 * MIB)
    first, second = buffers.take(MIB), buffers.take(MIB)
    first[:], second[:] = 1, 2
    assert int(first.max()) == 1
    assert buffers.made == 2


def test_no_more_is_kept_than_the_bound() -> None:
    buffers = BufferPool(3 * MIB)
    held = [buffers.take(MIB) for _ in range(9)]
    held.clear()
    assert buffers.free_bytes == 3 * MIB
    large = buffers.take(4 * MIB)
    del large
    assert buffers.free_bytes <= 3 * MIB


@given(st.integers(1, 1 << 40))
def test_a_size_class_is_at_most_a_quarter_more(length: int) -> None:
    assert length <= rounded(length) <= length + length // 4 + 1
    assert rounded(rounded(length)) == rounded(length)
