#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare kernel time of long rows (softmax, norms, cross-entropy) and of transpositions on a GPU with others.

    python scripts/bench_rows.py
    python scripts/bench_rows.py --cases softmax,transpose --columns 4096,262144 --contenders stitched,inductor
    python scripts/bench_rows.py --cases layer_norm --dtype float32

Each workload is one PyTorch function. Inductor compiles it, and so does tvm_stitch, through TVM's importer. Liger's and
QuACK's kernels are measured if their packages (liger-kernel, quack-kernels) are installed. A copy of as many bytes is
the yardstick. Times are CUPTI's, with the cache flushed before every call and contenders in turn. Results are compared
with PyTorch's in float64. A contender that fails or is wrong is left out with its reason.

Exit code: 0 all stitched results are right, 1 one is not, 2 a usage error.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import _checkout  # noqa: F401  (puts the packages on the path)
import torch
import tvm
from _flushed import FlushedTimer
from _gpu import need_gpu
from _table import aligned, geometric_mean
from models.importing import import_torch
from models.spec import Made
from torch.nn import functional as F
from tvm import relax

import tvm_stitch

Function = Callable[..., Any]

ELEMENTS = 1 << 27
"""Bytes of the operand of a workload of rows."""
COLUMNS = tuple(4096 << i for i in range(7))
EPSILON = 1e-6
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}
"""Most error, relative to the largest element of a result."""
ROUNDS = 3


@dataclass(frozen=True)
class Workload:
    """``function`` of tensors that ``inputs`` draws. ``kernels`` are those of other packages, by contender."""

    name: str
    function: Function
    inputs: Callable[[], list[torch.Tensor]]
    kernels: dict[str, Callable[[], Function]]

    def bytes_least(self, inputs: Sequence[torch.Tensor], result: torch.Tensor) -> int:
        """Count the bytes of reading each operand once and writing the result once."""
        return sum(t.numel() * t.element_size() for t in (*inputs, result))

    def expected(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return PyTorch's result in float64."""
        return self.function(*(x.double() if x.is_floating_point() else x for x in inputs)).double()


def _of(module: str, name: str) -> Function:
    """Return a function of a package that may not be installed."""
    function: Function = getattr(importlib.import_module(module), name)
    return function


def softmax(rows: int, columns: int, dtype: torch.dtype) -> Workload:
    """Softmax."""

    def liger() -> Function:
        return _of("liger_kernel.transformers.functional", "liger_softmax")

    def quack() -> Function:
        return _of("quack.softmax", "softmax_fwd")

    return Workload(
        f"softmax {rows} x {columns}",
        lambda x: torch.softmax(x, -1),
        lambda: [torch.randn(rows, columns, dtype=dtype)],
        {"liger": liger, "quack": quack},
    )


def rms_norm(rows: int, columns: int, dtype: torch.dtype) -> Workload:
    """RMS norm with a weight."""

    def liger() -> Function:
        liger_rms_norm = _of("liger_kernel.transformers.functional", "liger_rms_norm")
        return lambda x, w: liger_rms_norm(x, w, EPSILON, in_place=False)

    def quack() -> Function:
        rmsnorm = _of("quack.rmsnorm", "rmsnorm")
        return lambda x, w: rmsnorm(x, w, eps=EPSILON)

    return Workload(
        f"rms_norm {rows} x {columns}",
        lambda x, w: F.rms_norm(x, (columns,), w, EPSILON),
        lambda: [
            torch.randn(rows, columns, dtype=dtype),
            torch.randn(columns, dtype=dtype),
        ],
        {"liger": liger, "quack": quack},
    )


def layer_norm(rows: int, columns: int, dtype: torch.dtype) -> Workload:
    """Layer norm with a scale and a bias."""

    def liger() -> Function:
        theirs = _of("liger_kernel.transformers.functional", "liger_layer_norm")
        return lambda x, w, b: theirs(x, w, b, EPSILON)

    return Workload(
        f"layer_norm {rows} x {columns}",
        lambda x, w, b: F.layer_norm(x, (columns,), w, b, EPSILON),
        lambda: [torch.randn(*shape, dtype=dtype) for shape in ((rows, columns), (columns,), (columns,))],
        {"liger": liger},
    )


def cross_entropy(rows: int, columns: int, dtype: torch.dtype) -> Workload:
    """Cross-entropy of the logits of every row, in float32."""

    def liger() -> Function:
        liger_cross_entropy = _of("liger_kernel.transformers.functional", "liger_cross_entropy")
        return lambda x, t: liger_cross_entropy(x, t, reduction="none")

    def quack() -> Function:
        theirs = _of("quack.cross_entropy", "cross_entropy")
        return lambda x, t: theirs(x, t, reduction="none")

    return Workload(
        f"cross_entropy {rows} x {columns}",
        lambda x, t: F.cross_entropy(x.float(), t, reduction="none"),
        lambda: [torch.randn(rows, columns, dtype=dtype), torch.randint(columns, (rows,))],
        {"liger": liger, "quack": quack},
    )


ROWS = {"softmax": softmax, "rms_norm": rms_norm, "layer_norm": layer_norm, "cross_entropy": cross_entropy}
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
"""Of rows."""
SHAPES = ((4096, 4096), (32, 196, 768), (32, 768, 196))
"""Of transpositions of the two last axes."""


def transpose(*shape: int) -> Workload:
    """Transpose the two last axes of float32."""
    return Workload(
        f"transpose {' x '.join(map(str, shape))}",
        lambda x: x.transpose(-1, -2).contiguous(),
        lambda: [torch.randn(*shape)],
        {},
    )


def transpose_layer_norm(*shape: int) -> Workload:
    """Transpose the two last axes of float32, and normalise the rows by a layer norm."""
    return Workload(
        f"transpose + layer_norm {' x '.join(map(str, shape))}",
        lambda x, w, b: F.layer_norm(x.transpose(-1, -2), (shape[-2],), w, b),
        lambda: [torch.randn(*shape), torch.randn(shape[-2]), torch.randn(shape[-2])],
        {},
    )


TRANSPOSITIONS = {"transpose": transpose, "transpose_layer_norm": transpose_layer_norm}


def workloads(
    names: Sequence[str],
    columns: Sequence[int],
    elements: int = ELEMENTS,
    dtype: str = "bfloat16",
    shapes: Sequence[tuple[int, ...]] = SHAPES,
) -> Iterator[Workload]:
    """Return the workloads of these names."""
    for name in names:
        if name in ROWS:
            yield from (ROWS[name](max(elements // n, 1), n, DTYPES[dtype]) for n in columns)
        else:
            yield from (TRANSPOSITIONS[name](*shape) for shape in shapes)


class _Module(torch.nn.Module):
    def __init__(self, function: Function):
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return self.function(*args)


def imported(work: Workload, inputs: Sequence[torch.Tensor]) -> tvm.IRModule:
    """Import the workload as a Relax module."""
    return import_torch(Made(_Module(work.function), list(inputs)))


def stitched(work: Workload, inputs: Sequence[torch.Tensor]) -> Function:
    """Build with stitching, for tensors on the device, without a copy."""
    target = tvm.target.Target.from_device(tvm.cuda(0))
    built = tvm_stitch.compile(imported(work, [x.cpu() for x in inputs]), target)
    main = relax.VirtualMachine(built, tvm.cuda(0))["main"]
    return lambda *args: torch.from_dlpack(main(*(tvm.runtime.from_dlpack(x) for x in args)))


def _contender(name: str, work: Workload, inputs: Sequence[torch.Tensor]) -> Function:
    if name == "stitched":
        return stitched(work, inputs)
    if name == "inductor":
        torch._dynamo.reset()
        return torch.compile(work.function, dynamic=False)
    return work.kernels[name]()


def problem(result: torch.Tensor, expected: torch.Tensor) -> str | None:
    """Describe the error of a result against float64."""
    if result.shape != expected.shape:
        return f"wrong: shape {tuple(result.shape)}, not {tuple(expected.shape)}"
    error = float((result.double() - expected).abs().max() / expected.abs().max())
    return None if error <= TOLERANCE[result.dtype] else f"wrong: {error:.1e}"


def copy(moved: int) -> Callable[[], Any]:
    """Return a copy on the device that moves this number of bytes, read and written."""
    source = torch.empty(moved // 2, dtype=torch.uint8, device="cuda")
    return partial(torch.empty_like(source).copy_, source)


def bench(work: Workload, names: Sequence[str], timer: FlushedTimer) -> dict[str, Any]:
    """Return times in seconds by contender, or the reason why one has none."""
    inputs = [x.cuda() for x in work.inputs()]
    expected = work.expected(inputs)
    calls: dict[str, Callable[[], Any]] = {}
    failed: dict[str, str] = {}
    for name in names:
        if name not in ("stitched", "inductor") and name not in work.kernels:
            continue
        try:
            with torch.no_grad():
                function = _contender(name, work, inputs)
                wrong = problem(function(*inputs), expected)
        except Exception as error:  # a contender's kernel may refuse a size: the others continue
            wrong = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
        if wrong:
            failed[name] = wrong
        else:
            calls[name] = partial(function, *inputs)
    least = work.bytes_least(inputs, work.function(*inputs))
    calls["copy"] = copy(least)
    spent: dict[str, list[float]] = {name: [] for name in calls}
    with torch.no_grad():
        for _ in range(ROUNDS):
            for name, call in calls.items():
                spent[name].append(timer(call).seconds)
    seconds = {name: sorted(times)[len(times) // 2] for name, times in spent.items()}
    return {"workload": work.name, "bytes_least": least, "seconds": seconds, "failed": failed}


def table(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> str:
    """Write a line for each workload: microseconds, and stitching against the copy and the best peer."""
    head = ["", *(f"{name} us" for name in (*names, "copy")), "% of copy", "best peer/stitched"]
    body, ratios = [], []
    for row in rows:
        seconds = row["seconds"]
        cells = [row["workload"]]
        cells += [f"{seconds[n] * 1e6:.1f}" if n in seconds else "-" for n in (*names, "copy")]
        mine = seconds.get("stitched")
        peers = [seconds[n] for n in names if n != "stitched" and n in seconds]
        cells.append(f"{100 * seconds['copy'] / mine:.0f}" if mine else "-")
        if mine and peers:
            ratios.append(min(peers) / mine)
        cells.append(f"{ratios[-1]:.2f}" if mine and peers else "-")
        body.append(cells)
    if mean := geometric_mean(ratios):
        body.append(["geometric mean", *[""] * (len(head) - 2), f"{mean:.2f}"])
    return aligned(head, body)


def _is_shape(text: str) -> bool:
    extents = text.split("x")
    return len(extents) > 1 and all(n.isdigit() and int(n) > 0 for n in extents)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = (*ROWS, *TRANSPOSITIONS)
    parser.add_argument("--cases", default=",".join(known), help="comma-separated; all by default")
    parser.add_argument("--columns", default=",".join(map(str, COLUMNS)), help="of rows, comma-separated")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="of rows")
    usual = ",".join("x".join(map(str, shape)) for shape in SHAPES)
    parser.add_argument("--shapes", default=usual, help=f"of transpositions, comma-separated ({usual})")
    parser.add_argument("--contenders", default="stitched,inductor,liger,quack")
    parser.add_argument("--json", metavar="FILE", help="also write the numbers to this file")
    args = parser.parse_args(argv)
    cases, names = args.cases.split(","), args.contenders.split(",")
    if unknown := [name for name in cases if name not in known]:
        parser.error(f"unknown case {unknown[0]}: choose from {', '.join(known)}")
    if unknown := [name for name in names if name not in ("stitched", "inductor", "liger", "quack")]:
        parser.error(f"unknown contender {unknown[0]}: choose from stitched, inductor, liger, quack")
    if not all(n.isdigit() and 0 < int(n) for n in args.columns.split(",")):
        parser.error(f"--columns {args.columns}: positive numbers, separated by commas")
    shapes = [tuple(map(int, shape.split("x"))) for shape in args.shapes.split(",") if _is_shape(shape)]
    if len(shapes) != len(args.shapes.split(",")):
        parser.error(
            f"--shapes {args.shapes}: two extents or more each, as of 4096x4096, separated by commas"
        )
    need_gpu("cuda")
    timer = FlushedTimer()
    rows = []
    for work in workloads(cases, [int(n) for n in args.columns.split(",")], dtype=args.dtype, shapes=shapes):
        print(work.name, file=sys.stderr, flush=True)
        rows.append(bench(work, names, timer))
        torch.cuda.empty_cache()
        if args.json:  # after each workload, in case the rest takes too long
            Path(args.json).write_text(json.dumps(rows, indent=1))
    for row in rows:
        for name, why in row["failed"].items():
            print(f"{row['workload']}: {name} left out: {why}")
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    print(table(rows, names))
    return 1 if any("stitched" in row["failed"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
