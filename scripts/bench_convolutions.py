#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times float32 convolutions of training and their gradients on a GPU: stitched, by cuDNN alone, and by PyTorch.

    python scripts/bench_convolutions.py
    python scripts/bench_convolutions.py --batch 8 --parts weight --layers 0 2

Layers are those of ResNets. Weights are inputs, as in a training step. ``stitched`` uses ``StitchConfig()``, with the
kernels that pack weights and add up. ``cudnn`` is the same with ``compute="libraries"``. ``torch`` is PyTorch, which
times cuDNN's algorithms (``cudnn.benchmark``). All are exact float32 (no TensorFloat-32). Times are of the kernels of a
call, by the profiler. Errors are in the 2-norm, against float64.

Exit code: 0 every stitched result is right, 1 one is not, 2 a usage error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import _checkout  # noqa: F401  (puts the packages on the path)
import torch
import tvm
from _device_events import device_events
from _gpu import need_gpu
from torch import nn

from tvm_stitch.config import StitchConfig
from tvm_stitch.execution.runner import Runner
from tvm_stitch.importers.torch import from_exported_program
from tvm_stitch.relax.build import Built, build
from tvm_stitch.target import resolve_target

TOLERANCE = 3e-5
"""Most of ||result - reference|| / ||reference||: the loss of Winograd's algorithm in a weight's gradient."""
CALLS = 10
PARTS = ("forward", "data", "weight")
"""The convolution, and the gradients of its data and its weight."""
CONTENDERS = {"stitched": StitchConfig(), "cudnn": StitchConfig(compute="libraries")}
AT_ONCE = 8
"""Number of modules compiled at the same time."""


@dataclass(frozen=True)
class Layer:
    """A convolution of <channels, size, size>. The padding keeps the size, divided by the stride."""

    channels: int
    size: int
    outputs: int
    window: int
    stride: int

    def __str__(self) -> str:
        step = f"/{self.stride}" if self.stride > 1 else ""
        return f"{self.channels}x{self.size}x{self.size} by {self.outputs}x{self.window}x{self.window}{step}"


LAYERS = (
    Layer(64, 56, 64, 3, 1),
    Layer(64, 56, 128, 3, 2),
    Layer(64, 56, 128, 1, 2),
    Layer(128, 28, 128, 3, 1),
    Layer(256, 56, 64, 1, 1),
    Layer(1024, 14, 256, 1, 1),
    Layer(512, 7, 512, 3, 1),
    Layer(3, 224, 64, 7, 2),
)


class Part(nn.Module):
    """A part of a layer's step, of its data, its weight and its result's gradient."""

    def __init__(self, layer: Layer, part: str) -> None:
        super().__init__()
        self.stride, self.padding = [layer.stride] * 2, [layer.window // 2] * 2
        self.part = part

    def forward(self, x: Any, w: Any, g: Any) -> Any:
        """Compute the convolution, or one of its gradients."""
        if self.part == "forward":
            return nn.functional.conv2d(x, w, None, self.stride, self.padding)
        mask = [self.part == "data", self.part == "weight", False]
        backward = torch.ops.aten.convolution_backward
        given = self.stride, self.padding, [1, 1], False, [0, 0], 1, mask
        return backward(g, x, w, None, *given)[PARTS.index(self.part) - 1]


@dataclass(frozen=True)
class Case:
    """A part of a layer with its inputs."""

    layer: Layer
    part: str
    given: tuple[Any, ...]

    def mod(self) -> tvm.IRModule:
        """Build the part for TVM."""
        with torch.no_grad():
            program = torch.export.export(Part(self.layer, self.part), self.given)
        return from_exported_program(program)


def case_of(layer: Layer, part: str, batch: int) -> Case:
    """Make a case with random inputs."""
    places = -(-layer.size // layer.stride)
    x = torch.randn(batch, layer.channels, layer.size, layer.size)
    w = torch.randn(layer.outputs, layer.channels, layer.window, layer.window)
    return Case(layer, part, (x, w, torch.randn(batch, layer.outputs, places, places)))


def microseconds(call: Callable[[], Any]) -> float:
    """Return the microseconds of the kernels of a call."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()

    def run() -> None:
        for _ in range(CALLS):
            call()
        torch.cuda.synchronize()

    return sum(seconds for _, seconds in device_events(run)) * 1e6 / CALLS


def measure(case: Case, built: dict[str, Built], target: Any) -> bool:
    """Print a row, and return whether the stitched result is right."""
    part, given = Part(case.layer, case.part), [x.cuda() for x in case.given]
    wanted = part(*(x.double() for x in given))
    runners = {
        name: Runner(program.executable, target, [x.numpy() for x in case.given])
        for name, program in built.items()
    }
    results = {name: torch.tensor(runner.outputs()[0]).cuda() for name, runner in runners.items()}
    results["torch"] = part(*given)
    errors = {name: float((result - wanted).norm() / wanted.norm()) for name, result in results.items()}
    calls: dict[str, Callable[[], Any]] = {name: runner.__call__ for name, runner in runners.items()}
    calls["torch"] = lambda: part(*given)
    spent = {name: microseconds(call) for name, call in calls.items()}
    best = min(spent[name] for name in spent if name != "stitched")
    row = "".join(f"{spent[name]:10.1f}{errors[name]:9.0e}" for name in spent)
    how = next(iter(built["stitched"].recorder.computed.values()), "")
    print(
        f"{case.part:8}{case.layer!s:28}{row}{best / spent['stitched']:7.2f}  {how.split(':')[0]}", flush=True
    )
    return errors["stitched"] <= TOLERANCE


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batch", type=int, default=32, help="images (default: %(default)s)")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    numbers = range(len(LAYERS))
    told = "numbers of layers (default: all)"
    parser.add_argument("--layers", nargs="+", type=int, default=list(numbers), choices=numbers, help=told)
    options = parser.parse_args(argv)
    need_gpu()
    target = resolve_target("cuda")
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = False, True
    cases = [case_of(LAYERS[at], part, options.batch) for part in options.parts for at in options.layers]
    # The first layer of a network needs no gradient of its images.
    cases = [case for case in cases if case.part != "data" or case.layer.channels > 3]
    mods = [case.mod() for case in cases]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        builds = [
            {name: pool.submit(build, mod, target, CONTENDERS[name]) for name in CONTENDERS} for mod in mods
        ]
        built = [{name: future.result() for name, future in each.items()} for each in builds]
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, batch {options.batch}, float32")
    heads = "".join(f"{name + ' us':>10}{'error':>9}" for name in (*CONTENDERS, "torch"))
    print(f"{'part':8}{'layer':28}{heads}{'ratio':>7}  computed by")
    right = [measure(case, each, target) for case, each in zip(cases, built, strict=True)]
    print("ratio: the best peer's time over the stitched one")
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
