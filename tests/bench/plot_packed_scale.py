"""Draws what an owner's metadata costs: `python tests/bench/plot_packed_scale.py JSON PNG`.

Needs the dependency group `bench`. The rows are those that `tests/bench/packed_scale.py` keeps:
upper panels over the number of queues, lower ones over the number of segments.
"""

import json
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib as mpl  # pyright: ignore[reportMissingImports] - of the group bench
from matplotlib import pyplot as plt  # pyright: ignore[reportMissingImports] - the same

PANELS = (
    ("KiB a queue of a whole owner at rest", lambda row: _bytes(row) / 1024, "linear"),
    ("us of CPU for a queue's commit", lambda row: row["commit_us_a_queue"], "linear"),
    ("s of CPU to take the tier", lambda row: row["own_s"], "log"),
)
AXES = (("queues", "segments a queue"), ("segments", "queues"))
"""What is on the axis, and what each line has its own of."""
PANEL_SIZE = (4.4, 3.2)
"""Inches."""


def _bytes(row: dict[str, float]) -> float:
    return row["tier_bytes_a_queue"] + row["dispatcher_bytes_a_queue"]


def _lines(rows: list[dict[str, float]], by: str) -> Any:
    def of_line(row: dict[str, float]) -> float:
        return row["queues"] if by == "queues" else row["segments"] / row["queues"]

    return groupby(sorted(rows, key=lambda row: (of_line(row), row["segments"])), of_line)


def draw(axes: Any, rows: list[dict[str, float]], panel: tuple[Any, ...], axis: Any) -> None:
    """One quantity over the number of queues or of segments, which has a logarithmic axis."""
    (title, value, scale), (over, by) = panel, axis
    for number, group in _lines(rows, by):
        line = list(group)
        places, values = [row[over] for row in line], [value(row) for row in line]
        axes.plot(places, values, "o-", label=f"{number:,.0f} {by}", markersize=4)
    axes.set_xscale("log")
    axes.set_yscale(scale)
    if scale == "linear":
        axes.set_ylim(bottom=0)
    axes.set_title(title, loc="left", fontsize=9.5)
    axes.set_xlabel(over)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dddddd")
    axes.set_axisbelow(True)
    axes.legend(frameon=False, fontsize=8)


def main(results: Path, picture: Path) -> None:
    """Draw the panels beside each other, and both axes below each other."""
    mpl.use("Agg")
    rows = json.loads(results.read_text())
    width, height = PANEL_SIZE
    figure, grid = plt.subplots(
        len(AXES), len(PANELS), figsize=(width * len(PANELS), height * len(AXES))
    )
    for line, axis in zip(grid, AXES, strict=True):
        for axes, panel in zip(line, PANELS, strict=True):
            draw(axes, rows, panel, axis)
    figure.tight_layout()
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
