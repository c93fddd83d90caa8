# SPDX-License-Identifier: Apache-2.0
"""Draw the figures of the README and of docs/results.md, in docs/images, from the tables in docs/results.

    python scripts/plot_results.py

Each shows other compilers' times over tvm_stitch's: above 1, tvm_stitch is faster. The same tables give the same files.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
IMAGES = ROOT / "docs" / "images"

_HEAD = re.compile(r"^(?P<name>\w+, batch \d+) +stitched .*best peer/ours")
_ROW = re.compile(r"^(?P<model>[\w-]+) +[\d.]+ +[\d.]+ +(?P<ratio>[\d.]+) ")
_CPU_HEAD = re.compile(r"^model +stitched +ONNX Runtime .*best peer/ours")
_CPU_ROW = re.compile(r"^(?P<model>[\w-]+) +(?:[\d.]+ +){2,3}(?P<ratio>[\d.]+) +\d+ \+ \d+ ")
_CPU_NAMES = ("batch 1", "batch 8")
_MEAN = re.compile(r"^geometric mean +(?P<ratio>[\d.]+)$")
_CHAIN = re.compile(
    r"^(?P<case>\w+) +[\d.]+ +\d+ +[\d.]+ +[\d.]+ +(?P<copy>[\d.]+) +(?P<stock>[\d.]+|-) +(?P<inductor>[\d.]+)$"
)
_STYLES = (("#0072B2", "o"), ("#0072B2", "s"), ("#D55E00", "o"), ("#D55E00", "s"))
"""A colour for each dtype, a shape for each batch, both distinct for people who see no red or no green."""
_NOT_COPIED = "encoder_layer"
"""The case that is mostly products: a comparison with a copy of its bytes means nothing."""


@dataclass(frozen=True)
class Table:
    """Another compiler's time over tvm_stitch's, by model, and their geometric mean (0 if there is none)."""

    name: str
    ratios: dict[str, float]
    mean: float = 0.0


def section(page: str, title: str) -> str:
    """Return a section of a page.

    Raises:
        ValueError: if no section has that title.
    """
    text = f"{(RESULTS / page).read_text(encoding='utf-8')}\n"
    if f"\n## {title}\n" not in text:
        raise ValueError(f"{page} has no section {title!r}")
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


def tables(text: str) -> list[Table]:
    """Read the tables of whole models on a GPU.

    Raises:
        ValueError: if there are none, or one has no geometric mean: the page has changed its form.
    """
    return _tables(text, lambda line: (head := _HEAD.match(line)) and head["name"], _ROW)


def cpu_tables(text: str) -> list[Table]:
    """Read the tables of whole models on a CPU, one for each batch size.

    Raises:
        ValueError: as :func:`tables`.
    """
    names = iter(_CPU_NAMES)
    return _tables(text, lambda line: _CPU_HEAD.match(line) and next(names), _CPU_ROW)


def _tables(text: str, name_of: Callable[[str], Any], form: re.Pattern[str]) -> list[Table]:
    parsed: list[Table] = []
    name, ratios = "", dict[str, float]()
    for line in text.splitlines():
        if head := name_of(line):
            name, ratios = str(head), {}
        elif name and (row := form.match(line)):
            ratios[row["model"]] = float(row["ratio"])
        elif name and (mean := _MEAN.match(line)):
            parsed.append(Table(name, ratios, float(mean["ratio"])))
            name = ""
    if not parsed or name:
        raise ValueError("the section has no whole tables: each ends with a geometric mean")
    return parsed


def chain_tables(text: str) -> list[Table]:
    """Read the times of a copy, Inductor and stock TVM over tvm_stitch's, by single kernel.

    Raises:
        ValueError: if there is no table of that form.
    """
    rows = [row for line in text.splitlines() if (row := _CHAIN.match(line))]
    if not rows:
        raise ValueError("the section has no table of single kernels")
    copy = {row["case"]: float(row["copy"]) / 100 for row in rows if row["case"] != _NOT_COPIED}
    inductor = {row["case"]: float(row["inductor"]) for row in rows}
    stock = {row["case"]: float(row["stock"]) for row in rows if row["stock"] != "-"}
    return [
        Table("a copy of the same bytes", copy),
        Table("PyTorch Inductor", inductor),
        Table("stock TVM", stock),
    ]


@dataclass(frozen=True)
class Figure:
    """A figure: its file, its source section, and its labels."""

    file: str
    page: str
    section: str
    read: Callable[[str], list[Table]]
    title: str
    axis: str
    logarithmic: bool = False


_FASTEST = "time of the fastest other / time of tvm_stitch (above 1: tvm_stitch is faster)"
FIGURES = (
    Figure(
        "whole-models.svg", "models-gpu.md", "Whole models on a GPU", tables,
        "Whole models on an NVIDIA H200, CUDA graphs for all",
        "time of the fastest other compiler / time of tvm_stitch (above 1: tvm_stitch is faster)",
    ),
    Figure(
        "whole-models-cpu.svg", "cpu.md", "Whole models on a CPU", cpu_tables,
        "Whole models on two cores of an Intel Xeon, float32, against ONNX Runtime and PyTorch", _FASTEST,
    ),
    Figure(
        "single-kernels.svg", "single-kernels.md", "NVIDIA H200", chain_tables,
        "Single kernels on an NVIDIA H200", "time / time of tvm_stitch (above 1: tvm_stitch is faster)", True,
    ),
)  # fmt: skip


def draw(shown: Sequence[Table], path: Path, figure: Figure) -> None:
    """Write a figure as SVG, with a white background that is legible on a dark page."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    matplotlib.rcParams.update({"svg.hashsalt": "tvm_stitch", "svg.fonttype": "none", "font.size": 9})
    names = list(dict.fromkeys(m for table in shown for m in table.ratios))
    models = sorted(names, key=lambda m: max(t.ratios[m] for t in shown if m in t.ratios))
    canvas = Canvas(figsize=(8, 4.6), layout="constrained")
    axes = canvas.subplots()
    axes.axvline(1.0, color="black", linewidth=1)
    styles = _STYLES if len(shown) > 2 else _STYLES[::3]
    for place, (table, (colour, marker)) in enumerate(zip(shown, styles)):
        known = [(i, m) for i, m in enumerate(models) if m in table.ratios]
        heights = [i + ((len(shown) - 1) / 2 - place) * 0.17 for i, _ in known]
        label = f"{table.name} (geometric mean {table.mean:.2f})" if table.mean else table.name
        axes.scatter([table.ratios[m] for _, m in known], heights, 26, colour, marker=marker, label=label)
    axes.set_yticks(range(len(models)), models)
    if figure.logarithmic:
        axes.set_xscale("log")
        axes.set_xticks([0.5, 1, 2, 5, 10, 20, 40], ["0.5", "1", "2", "5", "10", "20", "40"])
        axes.minorticks_off()
    axes.grid(axis="x", linewidth=0.4)
    axes.grid(axis="y", linewidth=0.4, linestyle=":")
    axes.set_xlabel(figure.axis)
    axes.set_title(figure.title, loc="left")
    axes.legend(loc="lower right")
    canvas.savefig(path, format="svg", metadata={"Date": None})
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the figures, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=IMAGES, help="a folder (default: docs/images)")
    args = parser.parse_args(argv)
    for figure in FIGURES:
        draw(figure.read(section(figure.page, figure.section)), args.output / figure.file, figure)
    return 0


if __name__ == "__main__":
    sys.exit(main())
