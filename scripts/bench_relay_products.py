# SPDX-License-Identifier: Apache-2.0
"""Times products and convolutions of Relay modules on a CPU, by TOPI's schedules and by templates.

    python scripts/bench_relay_products.py --target native
    python scripts/bench_relay_products.py --cases "dense 128x768x768" "conv 64"

Needs a TVM with Relay. Both builds are stitched at opt_level 3, with compute="tvm" and "auto". They run in turn on one
thread, and the figure of each is the least processor time of a call.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

os.environ["TVM_NUM_THREADS"] = "1"  # before TVM is imported
import _checkout  # noqa: F401  (puts the packages on the path)
import numpy as np
import tvm
from comparison.native import native_cpu
from tvm import relay
from tvm.contrib import graph_executor

from tvm_stitch import StitchConfig
from tvm_stitch.relay import enable


@dataclass(frozen=True)
class Case:
    """A module of one operator and its followers. Runs get its inputs, and builds its other tensors."""

    name: str
    operations: int
    body: Any
    inputs: tuple[str, ...] = ("x",)


def dense(m: int, n: int, k: int, then: Callable[[Any], Any] | None = None, bound: bool = True) -> Case:
    """``<m, k>`` times a weight ``<n, k>``."""
    y = relay.nn.dense(relay.var("x", shape=(m, k)), relay.var("w", shape=(n, k)))
    name = f"dense {m}x{n}x{k}" + (f" {then.__name__}" if then else "") + ("" if bound else " no constant")
    return Case(name, 2 * m * n * k, then(y) if then else y, ("x",) if bound else ("x", "w"))


def batched(b: int, m: int, n: int, k: int, transposed: bool) -> Case:
    """``b`` products <m, k> x <k, n>."""
    w = relay.var("w", shape=(b, n, k) if transposed else (b, k, n))
    y = relay.nn.batch_matmul(relay.var("x", shape=(b, m, k)), w, transpose_b=transposed)
    name = f"batch_matmul {b}x{m}x{n}x{k}" + (" transposed" if transposed else "")
    return Case(name, 2 * b * m * n * k, y, ("x", "w"))


def conv(channels: int, outputs: int, size: int, kernel: int, stride: int = 1, groups: int = 1) -> Case:
    """Return a convolution of one square image with a bias and ReLU. ``kernel`` is odd."""
    x = relay.var("x", shape=(1, channels, size, size))
    w = relay.var("w", shape=(outputs, channels // groups, kernel, kernel))
    pad = (kernel // 2, kernel // 2)
    y = relay.nn.conv2d(x, w, (stride, stride), pad, (1, 1), groups, outputs, (kernel, kernel))
    y = relay.nn.relu(relay.nn.bias_add(y, relay.var("b", shape=(outputs,))))
    name = f"conv {channels}->{outputs}, {size}x{size}, {kernel}x{kernel}"
    name += (f", stride {stride}" if stride > 1 else "") + (f", {groups} groups" if groups > 1 else "")
    places = (-(-size // stride)) ** 2
    return Case(name, 2 * outputs * (channels // groups) * kernel * kernel * places, y)


def gelu(x: Any) -> Any:
    """GELU, written out."""
    return x * relay.const(0.5) * (relay.erf(x * relay.const(0.70710678)) + relay.const(1.0))


def cases() -> list[Case]:
    """Return all cases."""
    return [
        dense(128, 768, 768),
        dense(128, 3072, 768),
        dense(128, 3072, 768, gelu),
        dense(128, 768, 3072),
        dense(128, 768, 768, bound=False),
        dense(1, 768, 768),
        dense(8, 768, 768),
        dense(13, 100, 64),
        batched(12, 128, 64, 128, False),
        batched(12, 128, 128, 64, True),
        conv(64, 64, 56, 3),
        conv(256, 256, 14, 3),
        conv(512, 512, 7, 3),
        conv(64, 256, 56, 1),
        conv(3, 64, 224, 7, 2),
        conv(128, 128, 28, 3, 2),
        conv(64, 64, 28, 3, groups=4),
        conv(144, 144, 56, 3, groups=144),
    ]


def timed(case: Case, target: Any, rounds: int) -> tuple[list[float], float, str]:
    """Return the least seconds of a call by TOPI and by templates, their largest difference, and the report."""
    variables = relay.analysis.free_vars(case.body)
    mod = relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function(variables, case.body)))
    rng = np.random.default_rng(0)
    values = {}
    for var in variables:
        shape = [int(extent) for extent in var.type_annotation.shape]
        values[str(var.name_hint)] = rng.standard_normal(shape).astype("float32")
    params = {name: value for name, value in values.items() if name not in case.inputs}
    executors, told = [], ""
    for compute in ("tvm", "auto"):
        with tvm.transform.PassContext(opt_level=3), enable(StitchConfig(compute=compute)) as recorder:
            lib = relay.build(mod, target, params=params)
        told = "; ".join(recorder.computed.values())
        executors.append(graph_executor.GraphModule(lib["default"](tvm.cpu())))
        executors[-1].set_input(**{name: values[name] for name in case.inputs})
        executors[-1].run()
    one, other = (executor.get_output(0).numpy() for executor in executors)
    best = [float("inf")] * 2
    for _ in range(rounds):
        for i, executor in enumerate(executors):
            start = time.process_time()
            executor.run()
            best[i] = min(best[i], time.process_time() - start)
    return best, float(np.abs(one - other).max() / np.abs(one).max()), told


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="native", help="native, or a TVM target (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=100, help="calls of each (default: %(default)s)")
    parser.add_argument("--cases", nargs="+", default=[""], help="prefixes of names (default: all)")
    args = parser.parse_args(argv)
    target = tvm.target.Target(f"llvm -mcpu={native_cpu()}" if args.target == "native" else args.target)
    print(f"{target}, one thread, GFLOP/s\n{'':40}    TOPI  template  difference")
    for case in cases():
        if case.name.startswith(tuple(args.cases)):
            best, difference, told = timed(case, target, args.rounds)
            topi, template = (case.operations / seconds / 1e9 for seconds in best)
            line = f"{case.name:40}{topi:8.1f}{template:10.1f}{difference:12.1e}"
            print(line if told.startswith("our") else f"{line}  {told}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
