"""A walk that leaps over small records finds what a walk from one to the next finds."""

from random import Random

import numpy as np
import pytest

from container.record import columns
from container.record.header import (
    BLANK_MAGIC,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    BlankRecord,
    Coda,
)
from container.record.verification import ENDS_INSIDE, walk_records
from tests.support.messages import make_message

BYTES = 300_000


def step_by_step(raw: bytes) -> tuple[list[int], list[int], int, str]:
    """Starts, sizes, end, and the first word of why it ends there."""
    starts, sizes, place = list[int](), list[int](), 0
    while place < len(raw):
        if len(raw) - place < BlankRecord.SIZE:
            return starts, sizes, place, ENDS_INSIDE
        size, magic = BlankRecord.LAYOUT.unpack_from(raw, place)
        if magic in {MAGIC_V1, MAGIC_V2}:
            if size < RECORD_BYTES_MIN:
                return starts, sizes, place, "impossible"
            if size > len(raw) - place:
                return starts, sizes, place, ENDS_INSIDE
            starts.append(place)
            sizes.append(size)
        elif magic != BLANK_MAGIC or size < BlankRecord.SIZE:
            return starts, sizes, place, "unknown"
        place += size
    return starts, sizes, min(place, len(raw)), ""


def any_log(rng: Random) -> bytes:
    """Records of both versions, some with others in their bodies; codas and blanks between."""
    whole = make_message(0).encode()
    kinds = [
        make_message(0, topic="T" * rng.choice([1, 200]), body=body).encode()
        for length in (0, 20, 300, 5_000)
        for body in (rng.randbytes(length), whole + rng.randbytes(length), b"\xda" * length)
    ]
    kinds = kinds[rng.randrange(len(kinds) // 2) :: rng.choice([1, 2, 5])]
    extra = [Coda(7).encode(), BlankRecord(50).encode() + bytes(42)]
    made, share = bytearray(), rng.choice([0, 0.001, 0.2])
    while len(made) < BYTES:
        made += rng.choice(extra) if rng.random() < share else rng.choice(kinds)
    if rng.random() < 1 / 2:
        for _ in range(rng.randint(1, 3)):
            made[rng.randrange(len(made))] ^= 1 << rng.randrange(8)
    return bytes(made[: len(made) - rng.choice([0, 1, 9, 100])])


@pytest.mark.parametrize("seed", range(40))
def test_a_walk_finds_what_one_record_after_the_other_gives(seed: int) -> None:
    raw = any_log(Random(seed))
    starts, sizes, end, reason = step_by_step(raw)
    found = walk_records(raw)
    assert found.starts.tolist() == starts
    assert found.sizes.tolist() == sizes
    assert found.end == end
    assert found.reason.startswith(reason)
    assert bool(found.reason) == bool(reason)


def test_small_records_are_not_gone_through_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found = list[int]()
    inner = columns.Leaps.run_from

    def noted(one: columns.Leaps, place: int) -> np.ndarray:
        run = inner(one, place)
        found.append(run.shape[1])
        return run

    monkeypatch.setattr(columns.Leaps, "run_from", noted)
    count = 20_000
    assert len(walk_records(make_message(0).encode() * count).starts) == count
    assert sum(found) > count * 9 // 10
    assert max(found) == columns.RECORDS_MAX
