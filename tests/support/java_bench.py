"""Measures RocketMQ's own tiered store: `python tests/support/java_bench.py --help`.

One JSON object a line; the figures are described in `tests/rocketmq/src/Bench.java`. Any program
can have them from a directory of jars (`--print-library` names one):

    java -Xms4g -Xmx4g <JAVA_OPENS> -Dtieredstore.log.level=OFF -cp 'LIBRARY/*'
        Bench DIRECTORY BODY_BYTES QUEUES MESSAGES ROUNDS
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.rocketmq_broker import BrokerInstall

MEASURE_S_MAX = 1800


def measure(
    install: BrokerInstall,
    directory: Path,
    *,
    body_bytes: int,
    queues: int,
    messages: int,
    rounds: int,
    heap_mib: int = 4096,
) -> list[dict[str, Any]]:
    """The figures of all rounds but the warm-up; `directory` says which disk is measured."""
    command = install.java(
        "Bench",
        *(str(directory), str(body_bytes), str(queues), str(messages), str(rounds)),
        home=directory,
        heap_mib=heap_mib,
        # the four-group read logs tens of thousands of errors (RocketMQ issue 10470)
        properties={"tieredstore.log.level": "OFF"},
    )
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=MEASURE_S_MAX, check=False
    )
    if done.returncode:
        raise RuntimeError(f"Bench exited with {done.returncode}: {done.stderr[-2000:]}")
    figures = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [figure for figure in figures if figure["round"] > 0]


def medians(figures: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """For every metric the median round's rates, and the sum of wrong messages over the rounds."""
    rounds: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for figure in figures:
        rounds[figure["metric"]].append(figure)
    return {
        metric: {
            "messages_s": statistics.median(figure["messages_s"] for figure in of_metric),
            "bytes_s": statistics.median(figure["bytes_s"] for figure in of_metric),
            "cpu_seconds": statistics.median(figure["cpu_seconds"] for figure in of_metric),
            "wrong_messages": sum(figure["wrong_messages"] for figure in of_metric),
        }
        for metric, of_metric in rounds.items()
    }


def main(arguments: Sequence[str]) -> None:
    """Prints every figure, then a line with the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--body-bytes", type=int, default=1024)
    parser.add_argument("--queues", type=int, default=8)
    parser.add_argument("--messages", type=int, default=524_288)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--heap-mib", type=int, default=4096)
    parser.add_argument("--directory", type=Path, help="on the disk to be measured")
    parser.add_argument("--print-library", action="store_true", help="fetch, print where, stop")
    options = parser.parse_args(arguments)
    install = BrokerInstall.fetched()
    if options.print_library:
        sys.stdout.write(f"{install.library}\n")
        return
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        figures = measure(
            install,
            Path(directory),
            body_bytes=options.body_bytes,
            queues=options.queues,
            messages=options.messages,
            rounds=options.rounds,
            heap_mib=options.heap_mib,
        )
    for line in (*figures, {"medians": medians(figures)}):
        sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
