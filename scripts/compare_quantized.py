#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare quantized networks bit by bit: ONNX Runtime, stock TVM and tvm_stitch.

    python scripts/compare_quantized.py                                   # all networks (timm, transformers)
    python scripts/compare_quantized.py --networks mobilenetv4,bert       # some of them
    python scripts/compare_quantized.py --output table.md                 # the table as a file too

The reference is ONNX Runtime without graph optimizations. Each line has the number of outputs that differ from it, and
the first quantized tensor that differs. It also has the value of one element in float64 before rounding. Every
quantized tensor of a run is also computed in float64. The inputs are the tensors that the run computed before it. timm,
transformers and torchvision have to be installed.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from quantized.differences import First, Rounded, first_difference, rounded
from quantized.networks import NETWORKS, Network, quantized
from quantized.runs import REFERENCE, Inputs, runs

COLUMNS = (
    "Network",
    "Quantization",
    "Run",
    "Outputs that differ",
    "Largest difference",
    "Rounded otherwise than in float64",
    "Farthest from a tie",
    "First tensor that differs",
    "Elements",
    "Exact value",
    "Float32 error",
    "Run, reference",
    "Reason",
)
HEAD = "| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|"


def main(argv: list[str] | None = None) -> int:
    """Print the table. Return 1 if the first difference of a run of tvm_stitch is no tie, and 0 otherwise."""
    parser = argparse.ArgumentParser(description="Compare quantized networks bit by bit.")
    parser.add_argument("--networks", default="", help="names, separated by commas (default: all)")
    parser.add_argument("--output", help="write the table to this file too")
    args = parser.parse_args(argv)
    names = args.networks.split(",") if args.networks else []
    if unknown := set(names) - {n.name for n in NETWORKS}:
        parser.error(f"unknown networks: {', '.join(sorted(unknown))}")
    lines, wrong = [HEAD], False
    print(HEAD, flush=True)
    for network in NETWORKS:
        if names and network.name not in names:
            continue
        start = time.perf_counter()
        for line, is_wrong in _rows(network):
            wrong |= is_wrong
            lines.append(line)
            print(line, flush=True)
        print(f"{network.name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    if args.output:
        Path(args.output).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return int(wrong)


def _rows(network: Network) -> list[tuple[str, bool]]:
    """Return the table's lines of a network, and whether a run of tvm_stitch is wrong."""
    model, inputs = quantized(network)
    rows = []
    for name, outcome in compared(model, inputs).items():
        cells = [network.name, str(network.scheme), name, *outcome.cells()]
        ours, first = name.startswith("tvm_stitch"), outcome.first
        rows.append(("| " + " | ".join(cells) + " |", ours and first is not None and not first.is_tie))
    return rows


@dataclass(frozen=True)
class Outcome:
    """The outputs of a run against the reference's.

    Args:
        differ: elements of the outputs that differ.
        count: elements of the outputs.
        largest: the largest difference, as a part of the output's range.
        rounded: all quantized tensors against float64.
        first: the first quantized tensor that differs, or None.
    """

    differ: int
    count: int
    largest: float
    rounded: Rounded
    first: First | None

    def cells(self) -> list[str]:
        """Return the cells of the table."""
        r, f = self.rounded, self.first
        cells = [f"{self.differ} of {self.count}", f"{self.largest:.1e}" if self.differ else "0"]
        cells += [f"{r.otherwise} of {r.elements}", f"{r.farthest:.1e}" if r.otherwise else ""]
        if f is None:
            return [*cells, "", "", "", "", "", ""]
        exact, error = f"{f.exact:.9f}", f"{f.error:.1e}"
        return [*cells, f"`{f.tensor}`", str(f.count), exact, error, f"{f.found}, {f.reference}", f.reason]


def compared(model: onnx.ModelProto, inputs: Inputs) -> dict[str, Outcome]:
    """Return the outcome of every run on a quantized model."""
    ways = runs()
    reference = ways[REFERENCE]
    expected = reference(model, inputs)
    outcomes = {}
    for name, run in ways.items():
        outputs = run(model, inputs)
        pairs = list(zip(outputs, expected, strict=True))
        same = all(np.array_equal(a, b) for a, b in pairs)
        outcomes[name] = Outcome(
            sum(int((a != b).sum()) for a, b in pairs),
            sum(a.size for a in expected),
            max(_difference(a, b) for a, b in pairs),
            rounded(model, inputs, run),
            None if same else first_difference(model, inputs, run, reference),
        )
    return outcomes


def _difference(outputs: np.ndarray, expected: np.ndarray) -> float:
    wide = expected.astype("float64")
    return float(np.abs(outputs - wide).max() / max(np.ptp(wide), 1e-30))


if __name__ == "__main__":
    sys.exit(main())
