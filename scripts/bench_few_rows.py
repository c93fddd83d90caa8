# SPDX-License-Identifier: Apache-2.0
"""Measure products of few rows on this machine's CPU, next to reading the same bytes once, and to other libraries.

    python scripts/bench_few_rows.py                                # all kinds of weights, 1, 4 and 16 rows
    python scripts/bench_few_rows.py float32 4bit-words --rows 1 --columns 4096 --inner 14336
    TVM_NUM_THREADS=1 python scripts/bench_few_rows.py --peers none --processor-time   # on a busy machine

Weights are parameters of the compiled function. As in a decoder's step, products with several weights follow each
other, so that a cache smaller than ``--megabytes`` holds none of them. All contenders take turns by blocks of calls,
and the shortest call counts: other programs on the machine disturb long calls more than short ones. ``read`` is a
maximum over the same bytes. ``share`` is its time divided by that of the product. Errors are relative to the greatest
number of a result, in float64. ggml's library comes from the package ``libggml-python``.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tvm_stitch.support.cores import threads, use_all_cores

use_all_cores()
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads of PyTorch that spin would take TVM's cores

import tvm  # noqa: E402
from _few_rows_peers import PEERS, Peer  # noqa: E402
from _table import aligned  # noqa: E402
from models.narrow_weights import KINDS, Weight, product  # noqa: E402
from tvm import relax  # noqa: E402
from tvm.relax import op  # noqa: E402

import tvm_stitch  # noqa: E402

WORDS_OF_A_ROW = 4096
"""Words that a row of the read sweep has."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each kind of weight and number of rows, and return 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kinds", nargs="*", default=list(KINDS), metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--columns", type=int, default=4096, help="rows of a weight")
    parser.add_argument("--inner", type=int, default=4096, help="columns of a weight, a multiple of 32")
    parser.add_argument("--megabytes", type=int, default=256, help="bytes of all weights of a contender")
    parser.add_argument("--blocks", type=int, default=7, help="blocks of calls of each")
    parser.add_argument(
        "--peers", nargs="+", default=list(PEERS), metavar="PEER", help=f"{', '.join(PEERS)}, or none"
    )
    parser.add_argument(
        "--processor-time", action="store_true", help="measure the processor's time, of all threads together"
    )
    options = parser.parse_args(arguments)
    unknown = [kind for kind in options.kinds if kind not in KINDS]
    unknown += [peer for peer in options.peers if peer not in (*PEERS, "none")]
    if unknown:
        parser.error(f"neither a kind of weight nor a peer: {', '.join(unknown)}")
    if options.blocks < 1 or options.inner % 32 or min(options.rows) < 1:
        parser.error("blocks and rows are 1 at least, and --inner is a multiple of 32")
    peers = [peer for peer in options.peers if peer != "none"]
    head = [
        "weight",
        "rows",
        "MB",
        "error",
        "read, us",
        "us",
        "GB/s",
        "share",
        *(f"{peer}, us" for peer in peers),
    ]
    body = []
    for name in options.kinds:
        for rows in options.rows:
            line = _line(KINDS[name], rows, options, peers)
            body.append([name, str(rows), *line])
            print("  ".join(body[-1]), file=sys.stderr, flush=True)
    print(aligned(head, body))
    print(f"threads {threads()}")
    return 0


def _line(kind: Weight, rows: int, options: argparse.Namespace, peers: Sequence[str]) -> list[str]:
    """Return the cells of a kind of weight and a number of rows, behind these."""
    columns, inner = options.columns, options.inner
    tensors, wide = kind.drawn(columns, inner)
    size = sum(each.nbytes for each in tensors)
    copies = max(1, round(options.megabytes * 1e6 / size))
    x = np.random.default_rng(1).standard_normal((rows, inner), "float32").astype(kind.dtype)
    main = relax.VirtualMachine(tvm_stitch.compile(product(kind, rows, columns, inner)), tvm.cpu())["main"]
    given = tvm.runtime.tensor(x)
    copied = [[_in_large_pages(each) for each in tensors] for _ in range(copies)]
    exact = x.astype("float64") @ wide.T
    error = np.abs(main(given, *copied[0]).numpy().astype("float64") - exact).max() / np.abs(exact).max()
    contenders: dict[str, Peer] = {
        "read": _reading(tensors, copies),
        "ours": lambda: [main(given, *each) for each in copied],
    }
    for name in peers:
        # ONNX Runtime keeps one of several equal weights.
        floats = [np.roll(wide.astype("float32"), i, 0) for i in range(copies)]
        peer = PEERS[name](kind, x.astype("float32"), floats, threads())
        if peer is not None:
            contenders[name] = peer
    clock = time.process_time if options.processor_time else time.perf_counter
    calls = _shortest(contenders, options.blocks, clock)
    shortest = {name: seconds / copies for name, seconds in calls.items()}
    ours = shortest["ours"]
    cells = [f"{size / 1e6:.1f}", f"{error:.1e}", f"{shortest['read'] * 1e6:.0f}", f"{ours * 1e6:.0f}"]
    cells += [f"{size / ours / 1e9:.1f}", f"{shortest['read'] / ours:.2f}"]
    return cells + [f"{shortest[name] * 1e6:.0f}" if name in shortest else "-" for name in peers]


def _reading(tensors: Sequence[np.ndarray], copies: int) -> Peer:
    """Return a call that reads copies of tensors once: a maximum of every row of words."""
    words = sum(each.nbytes for each in tensors) // 4
    shape = (max(1, words // WORDS_OF_A_ROW), min(words, WORDS_OF_A_ROW))
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType(shape, "int32"))
    with builder.function("main", [data]):
        with builder.dataflow():
            result = builder.emit_output(op.max(data, axis=1))
        builder.emit_func_output(result)
    main = relax.VirtualMachine(tvm_stitch.compile(builder.get()), tvm.cpu())["main"]
    copied = [_in_large_pages(np.ones(shape, "int32")) for _ in range(copies)]
    return lambda: [main(each) for each in copied]


def _in_large_pages(array: np.ndarray) -> tvm.runtime.Tensor:
    """Return a copy of an array in memory that NumPy allocates, in large pages if the system has some.

    PyTorch's tensors of arrays lie there too. TVM's own memory has small pages. From DRAM they were read half as fast.
    """
    page = 1 << 21
    memory = np.empty(array.nbytes + page, "uint8")
    start = -memory.ctypes.data % page
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    if array.dtype == "bfloat16":  # DLPack does not know it from NumPy
        return tvm.runtime.from_dlpack(copy.view("uint16"))._create_view(array.shape, "bfloat16")
    return tvm.runtime.from_dlpack(copy)


def _shortest(contenders: Mapping[str, Peer], blocks: int, clock: Callable[[], float]) -> dict[str, float]:
    """Return the seconds of the shortest call of each contender by a clock. They take turns."""
    least = dict.fromkeys(contenders, float("inf"))
    for _ in range(blocks):
        for name, contender in contenders.items():
            time.sleep(0.02)
            for _ in range(3):
                start = clock()
                contender()
                least[name] = min(least[name], clock() - start)
    return least


if __name__ == "__main__":
    sys.exit(main())
