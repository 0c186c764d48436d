"""One round in a process of its own, so that its memory is its own: tiering, then cold reading."""

import asyncio
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from tieredstore.bench.measure import READ_SHAPES, Figure, measure_reading, measure_tiering
from tieredstore.bench.synthetic_store import SyntheticStore

KIB = 1024


class RoundProcess(NamedTuple):
    """What a round's process found."""

    figures: list[Figure]
    peak_bytes_tiering: int
    """Resident memory of the whole process at its highest, before anything was read."""


def run_round(store_dir: Path, tier_dir: Path, made: SyntheticStore) -> RoundProcess:
    """Tier `store_dir` into the empty `tier_dir`, read it back in every shape.

    Raises:
        RuntimeError: the process failed; the message ends with what it said.
    """
    command = [sys.executable, "-m", __name__, str(store_dir), str(tier_dir)]
    command.append(json.dumps(asdict(made)))
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - this file
    if done.returncode:
        raise RuntimeError(f"a round exited with {done.returncode}: {done.stderr[-500:]}")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    peak = rows.pop(1)["peak_bytes_tiering"]
    return RoundProcess([Figure(**row) for row in rows], peak)


def _measure(store_dir: Path, tier_dir: Path, made: SyntheticStore) -> Iterator[dict[str, object]]:
    yield asdict(asyncio.run(measure_tiering(store_dir, tier_dir, made)))
    yield {"peak_bytes_tiering": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB}
    for shape in READ_SHAPES:
        yield asdict(asyncio.run(measure_reading(tier_dir, made, shape)))


def _main(store_dir: str, tier_dir: str, made: str) -> None:
    for row in _measure(Path(store_dir), Path(tier_dir), SyntheticStore(**json.loads(made))):
        sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    _main(*sys.argv[1:])
