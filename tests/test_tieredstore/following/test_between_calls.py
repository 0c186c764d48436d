"""A broker that acts between any two calls of the follower: nothing is lost or tiered twice.

By hand, thousands of seeds: `run_seeds(Path("seeds"), range(10_000), share=0.005)`.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.busy_broker import remove
from tests.support.busy_world import BusyWorld
from tests.support.level import by_level

FOUND = (15, 48, 105, 109, 116, 122, 136)
"""Seeds that found something: a record beyond the known log that was not looked for, units of a
queue that came in during a look, an earlier queue's records in walks and floors, a queue that was
there taken for one that ended."""


@pytest.fixture
def nothing_blocks_the_loop() -> None:
    """Here all runs on one thread, so that a seed decides about every moment."""


async def run_seed(root: Path, seed: int, *, share: float) -> int:
    """One seed, alone; returns how often the broker acted between two calls.

    `share` is that of the boundaries at which it acts.
    """
    world = BusyWorld(root / str(seed), seed, share=share)
    with pytest.MonkeyPatch.context() as patch:
        world.interference.patch(patch)
        await world.run()
    remove(root / str(seed))
    return world.interference.acts


def run_seeds(root: Path, seeds: Iterable[int], *, share: float) -> int:
    """Each seed alone; returns how often the broker acted between two calls."""

    async def run() -> int:
        acts = 0
        for seed in seeds:
            try:
                acts += await run_seed(root, seed, share=share)
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise
        return acts

    return asyncio.run(run())


@pytest.mark.parametrize("part", range(3))
def test_what_a_look_showed_is_tiered_whatever_happens_between_two_calls(
    tmp_path: Path, part: int
) -> None:
    assert run_seeds(tmp_path, range(1000 + 4 * part, 1004 + 4 * part), share=0.005) > 4


@pytest.mark.slow
@pytest.mark.scales
@pytest.mark.parametrize("part", range(by_level(quick=1, full=1, nightly=100)))
def test_the_same_over_more_seeds(tmp_path: Path, part: int) -> None:
    assert run_seeds(tmp_path, range(1012 + 20 * part, 1032 + 20 * part), share=0.005) > 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", FOUND)
def test_what_was_found_before_does_not_come_back(tmp_path: Path, seed: int) -> None:
    share = 0.01 if seed in {15, 122} else 0.05
    assert run_seeds(tmp_path, [seed], share=share) > 1


@pytest.mark.slow
def test_a_seed_decides_whatever_order_sets_have(tmp_path: Path) -> None:
    def acts(number: int) -> str:
        run = f"run_seeds(Path({str(tmp_path / str(number))!r}), [48], share=0.05)"
        code = f"from {__name__} import *; print({run})"
        environment = {**os.environ, "PYTHONHASHSEED": str(number)}
        command = [sys.executable, "-c", code]
        return subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True
        ).stdout

    assert len({acts(number) for number in range(10, 14)}) == 1
