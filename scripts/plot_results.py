# SPDX-License-Identifier: Apache-2.0
"""Draws the README's figure, docs/images/whole-models.svg, from the tables of docs/results.md.

    python scripts/plot_results.py

For each model of "Whole models on a GPU": the time of the fastest other compiler over that of the stitched build.
The same tables give the same file.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results.md"
FIGURE = ROOT / "docs" / "images" / "whole-models.svg"
SECTION = "## Whole models on a GPU"

_HEAD = re.compile(r"^(?P<name>\w+, batch \d+) +stitched .*best peer/ours")
_ROW = re.compile(r"^(?P<model>[\w-]+) +[\d.]+ +[\d.]+ +(?P<ratio>[\d.]+) ")
_MEAN = re.compile(r"^geometric mean +(?P<ratio>[\d.]+)$")
_STYLES = (("#0072B2", "o"), ("#0072B2", "s"), ("#D55E00", "o"), ("#D55E00", "s"))
"""A colour for each dtype, a shape for each batch; both are told apart by people who see no red or no green."""


@dataclass(frozen=True)
class Table:
    """The best peer's time over ours, by model, and their geometric mean."""

    name: str
    ratios: dict[str, float]
    mean: float


def tables(text: str) -> list[Table]:
    """The tables of the section.

    Raises:
        ValueError: when there are none, or one has no geometric mean: the page has changed its form.
    """
    found: list[Table] = []
    name, ratios = "", dict[str, float]()
    for line in text[text.index(SECTION) :].split("\n## ")[0].splitlines():
        if head := _HEAD.match(line):
            name, ratios = head["name"], {}
        elif name and (row := _ROW.match(line)):
            ratios[row["model"]] = float(row["ratio"])
        elif name and (mean := _MEAN.match(line)):
            found.append(Table(name, ratios, float(mean["ratio"])))
            name = ""
    if not found or name:
        raise ValueError(f"{RESULTS.name} has no whole tables in its section {SECTION!r}")
    return found


def draw(found: Sequence[Table], path: Path) -> None:
    """Write the figure as SVG, with a white ground so that it is legible on a dark page."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update({"svg.hashsalt": "tvm_stitch", "svg.fonttype": "none", "font.size": 9})
    models = sorted(found[0].ratios, key=lambda m: max(t.ratios[m] for t in found))
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    axes = figure.subplots()
    axes.axvline(1.0, color="black", linewidth=1)
    for place, (table, (colour, marker)) in enumerate(zip(found, _STYLES, strict=True)):
        heights = [i + (1.5 - place) * 0.17 for i in range(len(models))]
        label = f"{table.name} (geometric mean {table.mean:.2f})"
        axes.scatter([table.ratios[m] for m in models], heights, 26, colour, marker=marker, label=label)
    axes.set_yticks(range(len(models)), models)
    axes.grid(axis="x", linewidth=0.4)
    axes.grid(axis="y", linewidth=0.4, linestyle=":")
    axes.set_xlabel("time of the fastest other compiler / time of tvm_stitch (above 1: tvm_stitch is faster)")
    axes.set_title("Whole models on an NVIDIA H100, CUDA graphs for all", loc="left")
    axes.legend(loc="lower right")
    figure.savefig(path, format="svg", metadata={"Date": None})
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Draw it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=FIGURE, help="(default: docs/images/whole-models.svg)")
    args = parser.parse_args(argv)
    draw(tables(RESULTS.read_text(encoding="utf-8")), args.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
