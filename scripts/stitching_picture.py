# SPDX-License-Identifier: Apache-2.0
"""Draw the README's picture of a chain before and after stitching, from the reports of both.

    python scripts/stitching_picture.py

Kernels and bytes are those of ``tvm_stitch.explain`` for sm_90. The same build gives the same file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import _checkout  # noqa: F401  (puts the packages on the path)

import tvm_stitch
from tvm_stitch.testing.workloads.cases import softmax_add_layer_norm_gelu

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "stitching.svg"
ROWS, COLUMNS = 4096, 1024
TARGET = "cuda -arch=sm_90"
WIDTH, TOP, STEP, BOX = 820, 76, 46, 30
STOCK_AT, STITCHED_AT, BOX_WIDTH = 30, 450, 340
ARROW = (
    '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
    '<path d="M0,0 L8,4 L0,8 z" fill="#555"/></marker></defs>'
)


def _box(x: int, y: int, height: int, lines: Sequence[str], colour: str) -> list[str]:
    """Return a kernel as a box with lines of text in its middle."""
    first = y + height / 2 - 8 * (len(lines) - 1) + 5
    return [
        f'<rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{height}" rx="5" fill="{colour}" stroke="#333"/>',
        *(
            f'<text x="{x + BOX_WIDTH / 2:g}" y="{first + 16 * i:g}" text-anchor="middle">{escape(line)}</text>'
            for i, line in enumerate(lines)
        ),
    ]


def _arrow(x: float, y: float, end: float) -> str:
    return f'<line x1="{x:g}" y1="{y:g}" x2="{x:g}" y2="{end:g}" stroke="#555" marker-end="url(#tip)"/>'


def _megabytes(size: Any) -> float:
    return size / 1e6 if isinstance(size, int) else 0.0


def picture() -> str:
    """Return the picture as SVG.

    Raises:
        ValueError: if the chain is more than one kernel.
    """
    report = tvm_stitch.explain(softmax_add_layer_norm_gelu(ROWS, COLUMNS).build(), TARGET).completed()
    if len(report.kernels) != 1 or report.stock is None:
        raise ValueError(f"the chain has {len(report.kernels)} stitched kernels: choose another one")
    stock = [f"{call.function}: {_megabytes(call.bytes):.1f} MB" for call in report.stock_kernels]
    (kernel,) = report.kernels
    before, after = _megabytes(report.stock.bytes), _megabytes(report.stitched.bytes)
    bottom = TOP + STEP * len(stock) - (STEP - BOX)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{bottom + 46}" '
        f'viewBox="0 0 {WIDTH} {bottom + 46}" font-family="sans-serif" font-size="13" role="img">',
        f"<title>softmax, add, layer norm and GELU: {len(stock)} kernels of stock TVM, 1 of tvm_stitch</title>",
        ARROW,
        f'<rect width="{WIDTH}" height="{bottom + 46}" fill="#fff"/>',
    ]
    for x, title, moved in (
        (STOCK_AT, f"Stock TVM: {len(stock)} kernels", before),
        (STITCHED_AT, "tvm_stitch: 1 kernel", after),
    ):
        middle = x + BOX_WIDTH / 2
        parts += [
            f'<text x="{middle:g}" y="28" text-anchor="middle" font-size="16" font-weight="bold">{title}</text>',
            f'<text x="{middle:g}" y="48" text-anchor="middle">{moved:.0f} MB through device memory</text>',
            _arrow(middle, 54, TOP),
            _arrow(middle, bottom, bottom + 22),
        ]
    for i, text in enumerate(stock):
        y = TOP + STEP * i
        parts += _box(STOCK_AT, y, BOX, [text], "#f3dcc8")
        if i:
            parts.append(_arrow(STOCK_AT + BOX_WIDTH / 2, y - (STEP - BOX), y))
    operators = ["softmax", "add", "layer norm", "GELU", "", "values stay in registers and shared memory"]
    parts += _box(STITCHED_AT, TOP, bottom - TOP, [kernel.function, "", *operators], "#cfe3f3")
    parts += [
        f'<text x="{WIDTH / 2:g}" y="{bottom + 40}" text-anchor="middle" fill="#555">'
        f"softmax, add, layer norm, GELU over {ROWS} x {COLUMNS} float32, planned for an H200</text>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the picture. Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=PICTURE, help="the file to write (%(default)s)")
    args = parser.parse_args(argv)
    args.output.write_text(picture(), encoding="utf-8")
    print(args.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
