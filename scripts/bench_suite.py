# SPDX-License-Identifier: Apache-2.0
"""Time the named workloads with stitching, stock TVM, PyTorch and, on request, XLA, in one run.

    python scripts/bench_suite.py --target llvm
    python scripts/bench_suite.py --target cuda --contenders stitched,stock,inductor,xla --json results.json

On CUDA the time is that of the kernels, and it is compared with a device-to-device copy of the same bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import _checkout  # noqa: F401  (puts the packages on the path)
import _contenders
from _gpu import need_gpu
from _measure import Contender, Timing, time_on_cpu, time_on_gpu
from _table import aligned, geometric_mean

from stitch_testing.random.graphs import describe_error
from stitch_testing.reference.relax import mismatches
from tvm_stitch.testing.workloads.case import Case
from tvm_stitch.testing.workloads.cases import cases

DEFAULT_CONTENDERS = {"llvm": "stitched,stock,inductor,eager", "cuda": "stitched,stock,inductor"}


def _wrong(case: Case, prepared: _contenders.Prepared, expected: list[Any]) -> str | None:
    """Describe how outputs differ from eager PyTorch's. The time of a wrong program means nothing."""
    tolerance = {dtype: (4 * r, 4 * a) for dtype, (r, a) in case.tolerance.items()}
    wrong = mismatches(prepared.outputs(), expected, tolerance)
    return "wrong: " + "; ".join(wrong) if wrong else None


def bench(case: Case, target: str, names: Sequence[str]) -> dict[str, Any]:
    """Measure one case. A contender that fails is left out, with its reason."""
    sets = _contenders.input_sets(case, target)
    ready: dict[str, Contender] = {}
    failed: dict[str, str] = {}
    expected = _contenders.eager(case, sets[:1], target).outputs()
    for name in names:
        start = time.perf_counter()
        try:
            prepared = _contenders.MAKERS[name](case, sets, target)
            problem = _wrong(case, prepared, expected)
        except Exception as error:
            problem = describe_error(error)
        if problem:
            failed[name] = problem[:300]
        else:
            ready[name] = prepared
        print(
            f"  {name}: {problem or 'ready'} ({time.perf_counter() - start:.1f} s)",
            file=sys.stderr,
            flush=True,
        )
    if target == "cuda":
        ready["copy"] = _contenders.copy_of(case.bytes_least())
        timings = time_on_gpu(ready)
    else:
        timings = time_on_cpu(ready)
    return {
        "case": case.name,
        "sizes": dict(case.sizes),
        "bytes_least": case.bytes_least(),
        "timings": timings,
        "failed": failed,
    }


def _ratio(row: dict[str, Any], name: str) -> float | None:
    """Return the time of ``name`` over stitching's."""
    timings: dict[str, Timing] = row["timings"]
    if name not in timings or "stitched" not in timings:
        return None
    return timings[name].seconds / timings["stitched"].seconds


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _row(row: dict[str, Any], target: str, others: Sequence[str]) -> list[str]:
    timings: dict[str, Timing] = row["timings"]
    mine = timings.get("stitched")
    cells = [row["case"], f"{row['bytes_least'] / 1e6:.1f}"]
    if target == "cuda":
        cells.append("-" if mine is None or mine.kernels is None else str(mine.kernels))
    cells.append(_cell(mine.seconds * 1e6 if mine else None, ".1f"))
    if target == "cuda":
        cells.append(_cell(row["bytes_least"] / mine.seconds / 1e12 if mine else None, ".2f"))
        cells.append(_cell(100 * timings["copy"].seconds / mine.seconds if mine else None, ".1f"))
    return [*cells, *(_cell(_ratio(row, name), ".2f") for name in others)]


def table(rows: Sequence[dict[str, Any]], target: str, names: Sequence[str]) -> str:
    """Write the results as text: a line for each case, then geometric means and the least of every ratio."""
    others = [name for name in names if name != "stitched"]
    head = ["case", "MB", *(["kernels"] if target == "cuda" else []), "us"]
    head += ["TB/s", "% of copy"] if target == "cuda" else []
    head += [f"{name}/stitched" for name in others]
    body = [_row(row, target, others) for row in rows]
    for title, fold in (("geometric mean", geometric_mean), ("least", min)):
        ratios = [[r for row in rows if (r := _ratio(row, name)) is not None] for name in others]
        blank = [""] * (len(head) - len(others) - 1)
        body.append(
            [title, *blank, *(_cell(fold(several) if several else None, ".2f") for several in ratios)]
        )
    return aligned(head, body)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=["llvm", "cuda"], default="llvm")
    parser.add_argument("--scale", choices=["test", "cpu", "gpu"], help="sizes; the target's own by default")
    parser.add_argument("--cases", help="comma-separated names; all by default")
    parser.add_argument("--contenders", help=f"comma-separated, of {', '.join(_contenders.MAKERS)}")
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count(), help="threads of every contender (llvm)"
    )
    parser.add_argument(
        "--mcpu",
        default="native",
        help="processor of the TVM contenders: native (as PyTorch uses), generic, or LLVM's name for one",
    )
    parser.add_argument("--json", metavar="FILE", help="also write the numbers to this file")
    args = parser.parse_args(argv)
    names = (args.contenders or DEFAULT_CONTENDERS[args.target]).split(",")
    if unknown := set(names) - set(_contenders.MAKERS):
        parser.error(
            f"unknown contenders {', '.join(sorted(unknown))}: choose from {', '.join(_contenders.MAKERS)}"
        )
    need_gpu(args.target)
    chosen = cases(args.scale or {"llvm": "cpu", "cuda": "gpu"}[args.target])
    if args.cases:
        known = {case.name: case for case in chosen}
        if unknown := set(args.cases.split(",")) - set(known):
            parser.error(f"unknown cases {', '.join(sorted(unknown))}: choose from {', '.join(known)}")
        chosen = [known[name] for name in args.cases.split(",")]
    _set_threads(args.threads)
    _contenders.MCPU = args.mcpu
    rows = []
    for case in chosen:
        print(f"{case.name} {dict(case.sizes)}", file=sys.stderr, flush=True)
        rows.append(bench(case, args.target, names))
    if args.json:
        plain = [{**row, "timings": {k: asdict(t) for k, t in row["timings"].items()}} for row in rows]
        Path(args.json).write_text(json.dumps(plain, indent=1))
    for row in rows:
        for name, problem in row["failed"].items():
            print(f"{row['case']}: {name} left out: {problem}")
    print(f"target: {_contenders.tvm_target(args.target, args.mcpu)}")
    print(table(rows, args.target, names))
    return 1 if any("stitched" in row["failed"] for row in rows) else 0


def _set_threads(threads: int) -> None:
    """Give TVM's pool and the launcher as many threads as PyTorch."""
    import torch
    import tvm

    os.environ["TVM_NUM_THREADS"] = str(threads)  # the launcher reads it in its first region
    torch.set_num_threads(threads)
    tvm.get_global_func("runtime.config_threadpool")(1, threads)


if __name__ == "__main__":
    sys.exit(main())
