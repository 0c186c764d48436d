"""Draws kept results of `tieredstore bench`: `python tests/bench/plot.py RESULTS_DIRECTORY PNG`.

Needs the dependency group `bench`. One row of bars a result: messages a second, ours and the Java
store's, median of the rounds with a line from the least to the most.
"""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl  # pyright: ignore[reportMissingImports] - of the group bench
from matplotlib import pyplot as plt  # pyright: ignore[reportMissingImports] - the same

METRICS = {
    "tier": "tiering",
    "read_32_by_1": "read, 32 a call",
    "read_1024_by_1": "read, 1,024 a call",
    "read_32_by_4": "read, 32, 4 readers",
}
COLUMNS = (("messages_s", "tieredstore", "#26619c"), ("java_messages_s", "Java store", "#c8963e"))


def draw(axes: Any, rows: list[dict[str, Any]]) -> None:
    """One result."""
    by_metric = {row["metric"]: row for row in rows}
    store = by_metric["run"]["store"]
    for shift, (column, label, colour) in enumerate(COLUMNS):
        spreads = [by_metric[metric][column] for metric in METRICS]
        if not any(spreads):
            continue
        values = [spread["median"] / 1e6 if spread else 0 for spread in spreads]
        places = [place + 0.4 * shift for place in range(len(METRICS))]
        axes.barh(places, values, 0.38, label=label, color=colour)
        for place, spread in zip(places, spreads, strict=True):
            if spread:
                axes.plot([spread["low"] / 1e6, spread["high"] / 1e6], [place] * 2, color="black")
    axes.set_yticks([place + 0.2 for place in range(len(METRICS))], METRICS.values())
    axes.invert_yaxis()
    axes.set_title(f"{store['body_bytes']} B, {store['queues']} queues", loc="left")
    axes.set_xlabel("million messages a second")


def main(directory: Path, picture: Path) -> None:
    """Draw every result of `directory` below each other."""
    mpl.use("Agg")
    results = [json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))]
    figure, columns = plt.subplots(len(results), 1, figsize=(8, 2.6 * len(results)), squeeze=False)
    for axes, rows in zip(columns[:, 0], results, strict=True):
        draw(axes, rows)
    columns[0, 0].legend()
    figure.tight_layout()
    figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
