"""The Java tiered store's figures, from a JVM in the same run."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tieredstore.bench.measure import Figure
from tieredstore.bench.synthetic_store import SyntheticStore

JVM_OPTIONS = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
    "-Dtieredstore.log.level=OFF",
)
METRICS = {"dispatch": "tier", "read_1_group": "read_32_by_1", "read_4_groups": "read_32_by_4"}
SECONDS_MAX = 1_800


def java_is_there() -> bool:
    """Whether a JVM can be started."""
    return shutil.which("java") is not None


def java_figures(
    library: Path, directory: Path, made: SyntheticStore, *, rounds: int, heap_mib: int = 4_096
) -> Iterator[tuple[int, Figure]]:
    """Run the harness's `Bench` (tests/rocketmq/src) and yield its figures with their rounds.

    `library` holds the jars and the compiled classes; `directory` must be empty or missing.

    Raises:
        RuntimeError: the JVM failed; the message ends with what it said.
    """
    command = [
        "java",
        f"-Xms{heap_mib}m",
        f"-Xmx{heap_mib}m",
        *JVM_OPTIONS,
        f"-Duser.home={directory}",
        "-cp",
        f"{library}/*",
        "Bench",
        str(directory),
        *(str(n) for n in (made.body_bytes, made.queues, made.messages, rounds)),
    ]
    done = subprocess.run(  # noqa: S603 - our own harness
        command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the JVM exited with {done.returncode}: {done.stderr[-500:]}")
    for line in done.stdout.splitlines():
        if not line.startswith("{"):
            continue
        row = json.loads(line)
        if row["round"] > 0 and row["metric"] in METRICS:
            figure = Figure(METRICS[row["metric"]], row["messages_s"], row["bytes_s"])
            yield row["round"], figure
