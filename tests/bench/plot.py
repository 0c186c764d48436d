"""Draws kept comparisons: `python tests/bench/plot.py RESULTS_DIRECTORY PNG`.

Needs the dependency group `bench`. One row of panels a case: messages a second, and microseconds
of CPU a message; ours, the Java store's, and the Java store's with its key index. Bars are medians
of the rounds, with a line from the least to the most; a diamond stands where the disk alone would
be (one file, written in pieces that are synced).
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
    "read_1024_by_1": "read, 1,024 a call\n(Java: 32)",
    "read_32_by_4": "read, 32 a call,\n4 readers",
    "read_32_decoded": "read and decode,\n32 a call",
    "read_32_properties": "read, decode and\nmap all properties",
}
LINE = "#444444"
SIDES = (
    (None, "tieredstore", "#26619c"),
    ("java", "Java store, warm, without key index", "#c8963e"),
    ("java_indexed", "Java store, warm, with key index", "#e5cfa4"),
)
COLUMNS = (
    ("messages_s", 1e-6, "million messages a second"),
    ("cpu_us", 1, "CPU microseconds a message (all threads, user and system)"),
)
PANEL_SIZE = (13.0, 3.5)
"""Inches, of both panels of a case."""
BAR = 0.26
HEADROOM = 1.25
"""Axes reach so far beyond the longest bar, for its label."""


def draw(axes: Any, rows: dict[str, dict[str, Any]], column: str, scale: float) -> None:
    """One quantity of a case: three bars a metric."""
    longest = 0.0
    for place, metric in enumerate(METRICS):
        for number, (side, label, colour) in enumerate(SIDES):
            found = rows[metric][side] if side else rows[metric]
            if not found:
                continue
            low, median, high = (scale * found[column][name] for name in ("low", "median", "high"))
            longest = max(longest, high)
            at = place + BAR * (number - 1)
            first = metric == "tier"
            axes.barh(at, median, 0.92 * BAR, color=colour, label=label if first else None)
            axes.plot([low, high], [at] * 2, color=LINE, linewidth=1.2)
            text = f"{median:.2f}"
            if side == "java":
                text += f"   (ours {rows[metric][column]['median'] * scale / median:.2f} of it)"
            axes.annotate(
                text,
                (high, at),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=7.5,
            )
    if column == "messages_s":
        tiering = rows["tier"]
        disk = scale * tiering["messages_s"]["median"] / tiering["to_raw"]
        axes.plot(disk, 0, "D", color="#a23b3b", markersize=5, label="the disk alone, tiering")
        longest = max(longest, disk)
    axes.set_xlim(0, longest * HEADROOM)


def read(path: Path) -> dict[str, dict[str, Any]]:
    """A kept result, its rows by metric."""
    return {row["metric"]: row for row in json.loads(path.read_text())}


def main(directory: Path, picture: Path) -> None:
    """Draw every result of `directory` below each other, the smallest bodies first."""
    mpl.use("Agg")
    results = [read(path) for path in directory.glob("*-java.json")]
    if not results:
        sys.exit(f"{directory} has no comparisons: `make bench-java` makes some")
    results.sort(
        key=lambda rows: (rows["run"]["store"]["body_bytes"], rows["run"]["store"]["queues"])
    )
    width, height = PANEL_SIZE
    figure, grid = plt.subplots(
        len(results), 2, figsize=(width, height * len(results)), squeeze=False, sharey=True
    )
    for panels, rows in zip(grid, results, strict=True):
        store = rows["run"]["store"]
        for axes, (column, scale, title) in zip(panels, COLUMNS, strict=True):
            draw(axes, rows, column, scale)
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
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.5 / figure.get_figheight()))
    figure.legend(handles, labels, loc="upper center", ncols=4, frameon=False)
    figure.savefig(picture, dpi=70)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
