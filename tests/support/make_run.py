"""The main job, for `make run`: tier a store, read some of it back cold, check it.

`make run-s3` does the same to a SeaweedFS that it starts itself, on loopback, and ends.

Without arguments the store is the sample that a real broker 5.3.3 wrote and that is shipped with
the tests; `make run CONF=... TIER=...` takes one's own, by its broker's file, and `STORE=...` where
that does not name the store directory.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.golden import ROCKETMQ_533, unpack

ROOT = Path(__file__).parents[2]

WORK = ROOT / ".run"
ON_S3 = "s3://"
"""Instead of a place: a server of our own."""
COMMAND = [sys.executable, "-m", "tieredstore"]


def step(*arguments: str) -> None:
    """Show a command, run it, and stop where it fails."""
    print(f"\n$ tieredstore {shlex.join(arguments)}", flush=True)
    status = subprocess.run([*COMMAND, *arguments], cwd=ROOT, check=False).returncode
    if status:
        sys.exit(status)


def first_queue(options: list[str]) -> tuple[str, str]:
    """A queue of the tier that holds messages."""
    lines = subprocess.run(
        [*COMMAND, *options, "topics", "--json"], cwd=ROOT, check=True, capture_output=True
    ).stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    row = next(row for row in rows if row["commit_offset"] > row["min_offset"])
    return row["topic"], str(row["queue_id"])


def main(store: str, tier: str, conf: str) -> None:
    """Run the job; on a server of our own if `tier` is `ON_S3`."""
    if tier != ON_S3:
        run(store, tier, conf)
        return
    from tests.support.seaweedfs import SeaweedFs  # noqa: PLC0415 - obstore is an extra

    with tempfile.TemporaryDirectory() as directory, SeaweedFs(Path(directory)) as server:
        os.environ.update(server.environment)
        print(f"SeaweedFS speaks S3 at {server.endpoint}")
        run(store, f"s3://{server.make_bucket('tiers')}/sample", conf)


def run(store: str, tier: str, conf: str) -> None:
    """Run the job on the given store, or on the sample."""
    options: list[str] = ["--conf", conf] if conf else []
    if not store and not conf:
        sample = WORK / "sample"
        if not sample.exists():
            unpack(ROCKETMQ_533, "closed", sample)
        store = str((sample / "store").relative_to(ROOT))
        options += ["--conf", str(ROCKETMQ_533.broker_conf.relative_to(ROOT))]
    options += ["--tier", tier or str(WORK.relative_to(ROOT) / "tier")]
    step(*options, "tier", *([store] if store else []))
    step(*options, "topics")
    step(*options, "read", *first_queue(options), "--max", "3")
    step(*options, "check")
    print(
        "\nNext: `make run CONF=/path/of/broker.conf TIER=PLACE` does it for your broker. PLACE is"
        "\na directory or s3://bucket/prefix; STORE=... names a store that the file does not."
        "\nREADME.md shows `tieredstore tier --follow` and Python; the command is in .venv/bin."
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
