"""Draws what many queues cost: `python tests/bench/plot_scale.py SCALE_JSON PNG`.

Needs the dependency group `bench`. The rows are those that `tests/bench/scale.py` keeps.
"""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl  # pyright: ignore[reportMissingImports] - of the group bench
from matplotlib import pyplot as plt  # pyright: ignore[reportMissingImports] - the same

PANELS = (
    ("seconds to tier four messages a queue", (("tier_s", "tieredstore tier"),), "log"),
    (
        "CPU of the follower, % of a core",
        (("idle_percent", "nothing arrives"), ("trickle_percent", "a message a second")),
        "linear",
    ),
    (
        "MiB of memory",
        (("tier_peak_mib", "tieredstore tier, peak"), ("follower_mib", "tier --follow")),
        "linear",
    ),
)
COLOURS = ("#26619c", "#c8963e")
PANEL_SIZE = (4.4, 3.4)
"""Inches."""


def draw(axes: Any, rows: list[dict[str, float]], panel: tuple[Any, ...]) -> None:
    """One quantity over the number of queues, which has a logarithmic axis."""
    title, lines, scale = panel
    queues = [row["queues"] for row in rows]
    for (name, label), colour in zip(lines, COLOURS, strict=False):
        values = [row[name] for row in rows]
        axes.plot(queues, values, "o-", color=colour, label=label, markersize=4)
        axes.annotate(
            f"{values[-1]:.3g}",
            (queues[-1], values[-1]),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=7.5,
        )
    axes.set_xscale("log")
    axes.set_yscale(scale)
    if scale == "linear":
        axes.set_ylim(bottom=0)
    axes.set_title(title, loc="left", fontsize=9.5)
    axes.set_xlabel("queues")
    axes.margins(x=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dddddd")
    axes.set_axisbelow(True)
    axes.legend(frameon=False, fontsize=8)


def main(results: Path, picture: Path) -> None:
    """Draw the panels beside each other."""
    mpl.use("Agg")
    rows = sorted(json.loads(results.read_text()), key=lambda row: row["queues"])
    width, height = PANEL_SIZE
    figure, grid = plt.subplots(1, len(PANELS), figsize=(width * len(PANELS), height))
    for axes, panel in zip(grid, PANELS, strict=True):
        draw(axes, rows, panel)
    figure.tight_layout()
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
