#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time the largest elements of rows on this CPU, next to TVM and PyTorch, on one thread.

    TVM_NUM_THREADS=1 python scripts/bench_top_k.py
    TVM_NUM_THREADS=1 python scripts/bench_top_k.py --shapes 1x32000x40 --dtypes bfloat16

Blocks of calls alternate between the contenders, and the shortest block counts. Rows are random, ascending or equal.

Exit code: 0, or 1 if the elements differ, 2 for a usage error.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

SHAPES = ("1x32000x40", "1x32000x64", "1x128256x64", "512x128x20")
ORDERS = ("random", "ascending", "equal")


def contenders(rows: int, length: int, count: int, dtype: str, order: str) -> dict[str, Callable[[], Any]]:
    """Return calls by name, which return the elements as NumPy's float64."""
    import torch
    import tvm
    from tvm import relax
    from tvm.relax import op as R

    import tvm_stitch
    from tvm_stitch.target import resolve_target

    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(rows, length)
    x = {"ascending": x.sort(-1).values, "equal": torch.ones_like(x)}.get(order, x).to(getattr(torch, dtype))
    builder = relax.BlockBuilder()
    given = relax.Var("x", relax.TensorType((rows, length), dtype))
    with builder.function("main", [given]):
        with builder.dataflow():
            both = builder.emit_output(R.topk(given, count, -1, "both", True, "int64"))
        builder.emit_func_output(both)
    target, tensor = resolve_target("native"), tvm.runtime.from_dlpack(x)

    def compiled(executable: Any) -> Callable[[], Any]:
        main = relax.VirtualMachine(executable, tvm.cpu())["main"]
        return lambda: torch.from_dlpack(main(tensor)[0]).double().numpy()

    return {
        "tvm_stitch": compiled(tvm_stitch.compile(builder.get(), target)),
        "TVM": compiled(tvm.compile(builder.get(), target)),
        "PyTorch": lambda: x.topk(count).values.double().numpy(),
    }


def shortest(calls: Sequence[Callable[[], Any]], blocks: int, repeats: int) -> list[float]:
    """Return the microseconds of each call in its shortest block."""
    found = [float("inf")] * len(calls)
    for _ in range(blocks):
        for at, call in enumerate(calls):
            begin = time.perf_counter()
            for _ in range(repeats):
                call()
            found[at] = min(found[at], (time.perf_counter() - begin) / repeats * 1e6)
    return found


def measure(args: argparse.Namespace) -> int:
    """Time all cases, print a table, and return the exit code."""
    import _checkout  # noqa: F401  (puts the packages on the path)

    wrong = 0
    print(f"{'rows':>5}{'length':>8}{'k':>4} {'dtype':9}{'order':10}", end="")
    print("".join(f"{name + ', us':>16}" for name in ("tvm_stitch", "TVM", "PyTorch")))
    for shape in args.shapes:
        rows, length, count = map(int, shape.split("x"))
        for dtype in args.dtypes:
            for order in ORDERS:
                made = contenders(rows, length, count, dtype, order)
                results = [call() for call in made.values()]
                wrong += any((each != results[0]).any() for each in results)
                times = shortest(list(made.values()), args.blocks, args.repeats)
                print(f"{rows:5}{length:8}{count:4} {dtype:9}{order:10}", end="")
                print("".join(f"{each:16.1f}" for each in times), flush=True)
    return int(wrong > 0)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="ROWSxLENGTHxK")
    parser.add_argument(
        "--dtypes", nargs="+", default=("float32",), choices=("float32", "bfloat16", "float16")
    )
    parser.add_argument("--blocks", type=int, default=15, help="blocks of calls (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="calls of a block (default: %(default)s)")
    return measure(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
