"""When a batch closes, how much it takes, and which options cannot work."""

from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.record.unit import UNIT_DTYPE
from dispatcher.options import DispatchOptions
from dispatcher.round_plan import due_at_s, messages_within, written_bytes

LIMITS = {"messages_max": 10, "bytes_max": 1000, "age_s_max": 0.5}


def test_a_batch_closes_on_count_on_bytes_or_on_age() -> None:
    assert due_at_s(messages=10, bytes_known=10, since_s=7.0, **LIMITS) == 7.0
    assert due_at_s(messages=1, bytes_known=1000, since_s=7.0, **LIMITS) == 7.0
    assert due_at_s(messages=9, bytes_known=999, since_s=7.0, **LIMITS) == 7.5


@given(
    st.lists(st.integers(1, 5000), min_size=1),
    st.integers(1, 100),
    st.integers(0, 20_000),
)
def test_a_cut_takes_as_many_as_fit_and_always_one(
    sizes: list[int], messages_max: int, bytes_max: int
) -> None:
    count = messages_within(
        np.array(sizes, np.int64), messages_max=messages_max, bytes_max=bytes_max
    )
    assert 1 <= count <= min(len(sizes), messages_max)
    assert count == 1 or sum(sizes[:count]) <= bytes_max
    if count < min(len(sizes), messages_max):
        assert sum(sizes[: count + 1]) > bytes_max


def test_sizes_of_a_damaged_unit_count_as_one_byte() -> None:
    units = np.zeros(3, UNIT_DTYPE)
    units["size"] = [-5, 0, 100]
    assert written_bytes(units).tolist() == [21, 21, 120]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"batch_messages_max": 0}, "batch_messages_max must be positive, not 0"),
        ({"batch_age_s_max": -1.0}, "batch_age_s_max must not be negative"),
        ({"batch_bytes_max": 64 << 20}, "at least rounds_max x batch_bytes_max = 134217728"),
        ({"references_max": 100}, "at least batch_messages_max = 4096"),
        ({"backoff_s_max": 0.01}, "must not be below backoff_s_min"),
        ({"backfill": timedelta(hours=-1)}, "backfill must reach into the past"),
    ],
)
def test_options_that_cannot_work_are_refused_with_a_sentence(
    options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        DispatchOptions(**options)


def test_the_memory_bound_is_what_the_formula_says() -> None:
    options = DispatchOptions()
    assert options.round_bytes_max == options.commit_bytes_max == 32 << 20
    assert options.commit_messages_max == 32_768
    assert options.memory_bytes_max == (128 << 20) + (40 << 20) + 12 * ((4 << 20) + (64 << 10))
