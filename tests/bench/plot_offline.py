"""Draws the speed of offline jobs: `python tests/bench/plot_offline.py JSON OBJECTS_JSON PNG`.

Needs the dependency group `bench`. The rows are those that `tests/bench/scan_speed.py` keeps, and
those of `tests/bench/object_jobs.py`.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl  # pyright: ignore[reportMissingImports] - of the group bench
from matplotlib import pyplot as plt  # pyright: ignore[reportMissingImports] - the same

Row = dict[str, Any]

COLOURS = {100: "#26619c", 1024: "#c8963e", 16384: "#5b8c5a"}
"""By length of bodies."""
LOCAL, SPARK = "local, ", "spark"
STYLES = {LOCAL: "o-", SPARK: "s--"}
COLUMNS = "tags and keys"
WANTED = {"scan": {100: 300, 1024: 500, 16384: 650}, "rebuild": {100: 180, 1024: 330, 16384: 650}}
"""MB/s that two cores must reach, by length of bodies."""
BARS_WIDTH = 0.8
"""Of a group of bars, of the way to the next."""
PANEL_SIZE = (4.4, 3.6)
"""Inches."""


def name_of(body_bytes: int) -> str:
    """A length as the legend says it."""
    return f"{body_bytes} B" if body_bytes < 1 << 10 else f"{body_bytes >> 10} KiB"


def rate_of(row: Row) -> float:
    """MB/s."""
    return row["bytes_s"]["median"] / 1e6


def draw_cores(axes: Any, rows: Sequence[Row], job: str, split_bytes: int) -> None:
    """MB/s of the local engine over its processes, of Spark as a square, and what is wanted."""
    for body_bytes, colour in COLOURS.items():
        mine = [
            row
            for row in rows
            if (row["metric"], row["body_bytes"]) == (job, body_bytes)
            and row["split_bytes"] == split_bytes
            and row["columns"] in ("", COLUMNS)
        ]
        local = {
            int(row["by"].removeprefix(LOCAL)): rate_of(row)
            for row in mine
            if row["by"].startswith(LOCAL)
        }
        counts = sorted(local)
        label = f"{name_of(body_bytes)} bodies"
        values = [local[count] for count in counts]
        axes.plot(counts, values, STYLES[LOCAL], color=colour, label=label, markersize=4)
        spark = [rate_of(row) for row in mine if row["by"].startswith(SPARK)]
        axes.plot(counts[-1:], spark, "s", color=colour, markersize=7, fillstyle="none")
        axes.axhline(WANTED[job][body_bytes], color=colour, linestyle=":", linewidth=1)
        axes.set_xticks(counts)
    axes.set_title(f"{job}, MB/s", loc="left", fontsize=9.5)
    axes.set_xlabel("processes; square: Spark, dots: wanted of 2")


def draw_splits(axes: Any, rows: Sequence[Row]) -> None:
    """MB/s of scans with two cores over the size of splits."""
    for body_bytes, colour in COLOURS.items():
        for engine, style in STYLES.items():
            chosen = {
                row["split_bytes"] >> 20: rate_of(row)
                for row in rows
                if row["metric"] == "scan"
                and row["columns"] == COLUMNS
                and row["body_bytes"] == body_bytes
                and row["by"].startswith(engine)
                and row["by"] != f"{LOCAL}1"
            }
            if len(chosen) > 1:
                sizes = sorted(chosen)
                label = f"{name_of(body_bytes)}, {engine.strip(', ')}"
                values = [chosen[size] for size in sizes]
                axes.plot(sizes, values, style, color=colour, label=label, markersize=4)
                axes.set_xscale("log")
                axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set_title("scan with two cores, MB/s", loc="left", fontsize=9.5)
    axes.set_xlabel("MiB of a split")


def draw_objects(axes: Any, rows: Sequence[Row]) -> None:
    """MB/s of rebuilds of a tier on S3 beside raw reads, each job a group of bars."""
    jobs = [*{(row["metric"], row["by"]): None for row in rows}]
    width = BARS_WIDTH / len(COLOURS)
    for place, (body_bytes, colour) in enumerate(COLOURS.items()):
        mine = {(row["metric"], row["by"]): row for row in rows if row["body_bytes"] == body_bytes}
        values = [rate_of(mine[job]) for job in jobs]
        places = [number + place * width for number in range(len(jobs))]
        axes.bar(places, values, width, color=colour, label=name_of(body_bytes))
    middles = [number + BARS_WIDTH / 2 - width / 2 for number in range(len(jobs))]
    labels = [f"{job}\n{by}" for job, by in jobs]
    axes.set_xticks(middles, labels, fontsize=6.5)
    axes.set_title("tier on S3, MB/s", loc="left", fontsize=9.5)


def main(results: Path, objects: Path, picture: Path) -> None:
    """Draw the panels beside each other."""
    mpl.use("Agg")
    rows: list[Row] = json.loads(results.read_text())[:-1]
    (split_bytes,) = {row["split_bytes"] for row in rows if row["metric"] == "rebuild"}
    width, height = PANEL_SIZE
    figure, grid = plt.subplots(1, 4, figsize=(width * 4, height))
    draw_cores(grid[0], rows, "scan", split_bytes)
    draw_cores(grid[1], rows, "rebuild", split_bytes)
    draw_splits(grid[2], rows)
    draw_objects(grid[3], json.loads(objects.read_text())[:-1])
    for axes in grid:
        axes.set_ylim(bottom=0)
        axes.margins(x=0.12)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#dddddd")
        axes.set_axisbelow(True)
        axes.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
