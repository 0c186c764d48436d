"""Draws kept results of `tieredstore bench`: `python tests/bench/plot.py RESULTS_DIRECTORY PNG`.

Needs the dependency group `bench`. One row of panels a result: messages a second, ours and the Java
store's (median of the rounds, with a line from the least to the most), and beside them the two
ratios that mean something on another machine, too: to the Java store, and to the raw limits.
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
    "read_32_by_4": "read, 32 a call,\n4 readers",
    "read_32_decoded": "read and decode,\n32 a call",
}
OURS, JAVA, LINE = "#26619c", "#c8963e", "#444444"
RATES = (("messages_s", "tieredstore", OURS), ("java_messages_s", "Java store", JAVA))
TITLES = (
    "million messages a second",
    "times the Java store's messages a second",
    "share of the raw MB/s\n(tiering: disk with syncs; reads: page cache)",
)
PANEL_SIZE = (13.0, 2.9)
"""Inches, of all three panels of a result."""
HEADROOM = 1.22
"""Axes go on so far behind the longest bar, for its label."""


def draw_rates(axes: Any, rows: dict[str, dict[str, Any]]) -> None:
    """Messages a second, ours above the Java store's."""
    for shift, (column, label, colour) in enumerate(RATES):
        for place, metric in enumerate(METRICS):
            spread = rows[metric][column]
            if not spread:
                continue
            low, median, high = (spread[name] / 1e6 for name in ("low", "median", "high"))
            at = place + 0.4 * shift - 0.2
            axes.barh(at, median, 0.38, color=colour, label=label if not place else None)
            axes.plot([low, high], [at] * 2, color=LINE, linewidth=1.4)
            axes.annotate(
                f"{median:.2f}",
                (max(high, median), at),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )


def draw_ratios(axes: Any, rows: dict[str, dict[str, Any]], column: str) -> None:
    """One ratio a metric, and a line where both are equal."""
    axes.axvline(1, color=LINE, linewidth=1, linestyle="--")
    if all(rows[metric][column] is None for metric in METRICS):
        axes.annotate("not measured", (0.5, 0.5), xycoords="axes fraction", ha="center")
    for place, metric in enumerate(METRICS):
        ratio = rows[metric][column]
        if ratio is None:
            continue
        axes.barh(place, ratio, 0.6, color=OURS)
        axes.annotate(
            f"{ratio:.2g}" if ratio < 1 else f"{ratio:.1f}",
            (ratio, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )


def widest(results: list[dict[str, dict[str, Any]]]) -> tuple[float, float, float]:
    """The ends of the three axes, the same for all results, so that they can be compared."""
    lines = [rows[metric] for rows in results for metric in METRICS]
    spreads = [line[column] for line in lines for column, *_ in RATES if line[column]]
    rate = max((spread["high"] for spread in spreads), default=1e6) / 1e6
    to_java = max((line["to_java"] or 0 for line in lines), default=1)
    to_raw = max((line["to_raw"] or 0 for line in lines), default=1)
    return rate * HEADROOM, max(to_java, 1) * HEADROOM, max(to_raw, 1) * HEADROOM


def read(path: Path) -> dict[str, dict[str, Any]]:
    """A kept result, its rows by metric."""
    return {row["metric"]: row for row in json.loads(path.read_text())}


def main(directory: Path, picture: Path) -> None:
    """Draw every result of `directory` below each other, the smallest bodies first."""
    mpl.use("Agg")
    results = [read(path) for path in directory.glob("*.json")]
    if not results:
        sys.exit(f"{directory} has no results: `make bench` makes some")
    results.sort(
        key=lambda rows: (rows["run"]["store"]["body_bytes"], rows["run"]["store"]["queues"])
    )
    width, height = PANEL_SIZE
    figure, grid = plt.subplots(
        len(results), 3, figsize=(width, height * len(results)), squeeze=False, sharey=True
    )
    ends = widest(results)
    for panels, rows in zip(grid, results, strict=True):
        store = rows["run"]["store"]
        draw_rates(panels[0], rows)
        draw_ratios(panels[1], rows, "to_java")
        draw_ratios(panels[2], rows, "to_raw")
        for axes, end, title in zip(panels, ends, TITLES, strict=True):
            axes.set_xlim(0, end)
            axes.set_xlabel(title)
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(axis="x", color="#dddddd")
            axes.set_axisbelow(True)
        panels[0].set_yticks(range(len(METRICS)), METRICS.values())
        panels[0].set_title(
            f"Bodies of {store['body_bytes']:,} B in {store['queues']} queues, "
            f"{store['messages']:,} messages",
            loc="left",
            fontweight="bold",
        )
    grid[0, 0].invert_yaxis()
    grid[0, 0].legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
