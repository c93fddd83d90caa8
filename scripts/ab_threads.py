# SPDX-License-Identifier: Apache-2.0
"""Times rows with several live inputs on a GPU, with as many threads a row as the mapping chooses and with others.

    python scripts/ab_threads.py
    python scripts/ab_threads.py --columns 512,2048 --inputs 7,8,9,10 --threads 64,128,1024

All inputs of a row are read for a sum and again for the result, so they are kept in registers in between. Times are of
the kernel alone, in microseconds. * marks the planner's choice. Other thread counts are forced on it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import _checkout  # noqa: F401  (puts the packages on the path)
import numpy as np
import tvm
from _gpu import need_gpu
from _measure import Timing, time_on_gpu
from tvm import relax
from tvm.relax import op as R

from tvm_stitch.plan.gpu import tile
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.relax.pipeline import pipeline

BYTES = 256 << 20
"""Bytes of all inputs of a case together."""


def rows_of(columns: int, inputs: int) -> int:
    """Return the number of rows that fill ``BYTES``."""
    return max(1, BYTES // (4 * columns * inputs))


def graph(rows: int, columns: int, inputs: int) -> tvm.IRModule:
    """Build the inputs' alternating sum of products, divided by the row's sum of all of them."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType([rows, columns], "float32")) for i in range(inputs)]
    with builder.function("main", params):
        with builder.dataflow():
            total = params[0]
            for x in params[1:]:
                total = builder.emit(R.add(total, x))
            total = builder.emit(R.sum(total, 1, True))
            result: Any = params[0]
            for i, x in enumerate(params[1:]):
                result = builder.emit((R.multiply, R.subtract)[i % 2](result, x))
            normalized = builder.emit_output(R.divide(result, total))
        builder.emit_func_output(normalized)
    return builder.get()


@contextmanager
def threads_a_row(threads: int | None) -> Iterator[None]:
    """Force this number of threads on rows, whatever the planner would choose."""
    chosen = tile._threads_for
    if threads is not None:
        tile._threads_for = lambda *_args: threads
    try:
        yield
    finally:
        tile._threads_for = chosen


def compiled(mod: tvm.IRModule, target: Any, threads: int | None) -> tuple[Any, int]:
    """Return the executable, and the threads of a row."""
    recorder = Recorder()
    with threads_a_row(threads):
        executable = tvm.compile(mod, target, relax_pipeline=pipeline(target, recorder=recorder))
    (plan,) = recorder.plans.values()
    return executable, plan.stage.row_mapping.threads


def bench(columns: int, inputs: int, alternatives: Sequence[int]) -> tuple[int, dict[int, Timing]]:
    """Return the planner's choice of threads, and the times by threads a row."""
    device, rows = tvm.cuda(0), rows_of(columns, inputs)
    target = tvm.target.Target.from_device(device)
    mod = graph(rows, columns, inputs)
    rng = np.random.default_rng(0)
    args = [
        tvm.runtime.tensor(rng.uniform(0.5, 1.5, (rows, columns)).astype("float32"), device)
        for _ in range(inputs)
    ]
    chosen, ready, expected = 0, {}, None
    for wanted in (None, *alternatives):
        executable, threads = compiled(mod, target, wanted)
        chosen = chosen or threads
        if str(threads) in ready:
            continue
        main = relax.VirtualMachine(executable, device)["main"]
        outcome = main(*args).numpy()
        expected = outcome if expected is None else expected
        np.testing.assert_allclose(outcome, expected, rtol=1e-4, atol=1e-4)
        ready[str(threads)] = _call(main, args)
    return chosen, {int(threads): timing for threads, timing in time_on_gpu(ready).items()}


def _call(main: Any, args: Sequence[Any]) -> Callable[[], object]:
    return lambda: main(*args)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--columns", default="256,512,1024,2048,4096")
    parser.add_argument("--inputs", default="6,7,8,9,10,12")
    parser.add_argument("--threads", default="32,64,128,256,512,1024")
    options = parser.parse_args(argv)
    need_gpu()
    columns, inputs, threads = (
        [int(n) for n in text.split(",")] for text in (options.columns, options.inputs, options.threads)
    )
    print("columns  inputs  " + "".join(f"{t:>10}" for t in threads), flush=True)
    for c in columns:
        for i in inputs:
            chosen, times = bench(c, i, threads)
            cells = [
                f"{times[t].seconds * 1e6:.1f}{'*' if t == chosen else ' '}" if t in times else "-"
                for t in threads
            ]
            print(f"{c:>7}  {i:>6}  " + "".join(f"{cell:>10}" for cell in cells), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
