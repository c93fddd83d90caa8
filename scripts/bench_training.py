#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times whole training steps (forward, backward, Adam) stitched, with PyTorch eager and with Inductor, in one run.

    python scripts/bench_training.py --target cuda
    python scripts/bench_training.py --target native --size small --contenders stitched,eager

A step is one graph, as PyTorch traces it, for all contenders. Inductor and tvm_stitch get forward, backward and
optimizer at once, with CUDA graphs (mode reduce-overhead). Contenders take turns by blocks of calls. On a GPU CUDA
events measure the time, with the L2 flushed before each block. Every result is compared with PyTorch's own
differentiation in float64.

Exit code: 0 every stitched step is right, 1 one is not, 2 a usage error.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import _checkout  # noqa: F401  (puts the packages on the path)
import numpy as np
import torch
import tvm
from _cuda_events import microseconds
from _gpu import need_gpu
from _measure import time_on_cpu
from models.errors import relative_error
from models.training import ResidualBlock, Training, TransformerLayer, training

from tvm_stitch.execution.count import count_lowered
from tvm_stitch.execution.runner import Runner
from tvm_stitch.relax.build import build
from tvm_stitch.target import resolve_target

TOLERANCE = 1e-4
"""Most error, relative to the largest element of a result."""
BLOCKS, CALLS = 7, 20
CONTENDERS = ("stitched", "eager", "inductor")


def transformer(size: str) -> Training:
    """Return a layer of BERT-base on 32 sequences of 128, or a small one."""
    batch, length, width, heads = (32, 128, 768, 12) if size == "full" else (2, 8, 32, 4)
    torch.manual_seed(1)
    x, target = torch.randn(batch, length, width), torch.randn(batch, length, width)
    kept = (torch.rand(batch, length, width) < 0.9).float()
    return training(TransformerLayer(width, heads, 4 * width), (x, kept, target))


def residual(size: str) -> Training:
    """Return the first block of ResNet-18's second stage on 32 images, or a small one."""
    batch, inputs, channels, classes, side = (32, 64, 128, 1000, 56) if size == "full" else (3, 4, 6, 5, 8)
    torch.manual_seed(2)
    x = torch.randn(batch, inputs, side, side)
    return training(
        ResidualBlock(inputs, channels, classes), (x, torch.softmax(torch.randn(batch, classes), -1))
    )


STEPS: dict[str, Callable[[str], Training]] = {"transformer": transformer, "residual": residual}


class Stitched:
    """The stitched build of a step."""

    def __init__(self, step: Training, target: Any):
        on_gpu = target.kind.name == "cuda"
        with tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": on_gpu}):
            built = build(step.mod, target)
        self.runner = Runner(built.executable, target, step.inputs)
        count = count_lowered(built.lowered, target)
        self.kernels = f"{count.compute_intensive} + {count.memory_intensive} + {count.external}"
        self.left = dict(built.recorder.declined)

    def outputs(self) -> list[np.ndarray]:
        """Return the results of a step."""
        return self.runner.outputs()

    def __call__(self) -> Any:
        return self.runner.vm[self.runner.entry](*self.runner.arguments)


class PyTorch:
    """PyTorch's step, eager or compiled."""

    kernels = "-"

    def __init__(self, step: Training, device: str, compiled: bool):
        mode = "reduce-overhead" if device == "cuda" else "default"
        self.step = torch.compile(step.step, mode=mode) if compiled else step.step
        self.given = [x.to(device) for x in step.given]

    def outputs(self) -> list[np.ndarray]:
        """Return the results of a step."""
        return [x.cpu().numpy() for x in self()]

    def __call__(self) -> Any:
        with torch.no_grad():
            return self.step(*self.given)


def measure(name: str, options: argparse.Namespace) -> bool:
    """Print a step's table, and return whether the stitched step is right."""
    step, target = STEPS[name](options.size), resolve_target(options.target)
    device = "cuda" if target.kind.name == "cuda" else "cpu"
    ready: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    for contender in options.contenders:
        begin = time.perf_counter()
        if contender == "stitched":
            ready[contender] = Stitched(step, target)
        else:
            ready[contender] = PyTorch(step, device, contender == "inductor")
        for _ in range(3):  # Inductor records CUDA graphs in the second call
            ready[contender]()
        seconds[contender] = time.perf_counter() - begin
    errors = {contender: relative_error(ready[contender].outputs(), step.wanted) for contender in ready}
    if device == "cuda":
        spent = {contender: us / 1e3 for contender, us in microseconds(ready, BLOCKS, CALLS).items()}
    else:
        spent = {contender: 1e3 * timing.seconds for contender, timing in time_on_cpu(ready).items()}
    print(f"\n{name}: {options.size}, float32, {target.kind.name}")
    print(f"{'contender':10}{'median ms':>11}{'prepared s':>12}{'kernels':>14}{'error':>10}")
    for contender, program in ready.items():
        row = f"{contender:10}{spent[contender]:11.4g}{seconds[contender]:12.1f}{program.kernels:>14}"
        print(f"{row}{errors[contender]:10.1e}")
    others = [spent[contender] for contender in spent if contender != "stitched"]
    if others and "stitched" in spent:
        print(f"best peer/ours: {min(others) / spent['stitched']:.2f}")
    for scope, reason in getattr(ready.get("stitched"), "left", {}).items():
        print(f"left to TVM: {scope}: {reason}")
    return errors.get("stitched", 0.0) < TOLERANCE


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="native", choices=["native", "llvm", "cuda"])
    parser.add_argument("--steps", nargs="+", default=list(STEPS), choices=list(STEPS))
    parser.add_argument("--size", default="full", choices=["full", "small"])
    parser.add_argument(
        "--contenders", default=",".join(CONTENDERS), help="comma-separated (default: %(default)s)"
    )
    options = parser.parse_args(argv)
    options.contenders = options.contenders.split(",")
    if unknown := [name for name in options.contenders if name not in CONTENDERS]:
        parser.error(f"no contender {', '.join(unknown)}; choose from {', '.join(CONTENDERS)}")
    need_gpu(options.target)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    right = [measure(name, options) for name in options.steps]
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
