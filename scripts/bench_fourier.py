# SPDX-License-Identifier: Apache-2.0
"""Compare Fourier transforms with PyTorch on this machine's CPU, in time and in error against float64.

    python scripts/bench_fourier.py                                    # fft, rfft and irfft of 64 to 16,384 numbers
    python scripts/bench_fourier.py rfft --lengths 400 1021 --rows 3000 --blocks 3
    python scripts/bench_fourier.py --lengths 4096 16384 65536 --rows 1 --errors   # errors alone

Both take turns by blocks of calls, with the same number of threads. The shortest call counts, since other programs on
the machine disturb long calls more than short ones. A ratio is PyTorch's time divided by that of tvm_stitch. An error
is the greatest one of a result, divided by its greatest number.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tvm_stitch.support.cores import threads, use_all_cores

use_all_cores()

import torch  # noqa: E402
import tvm  # noqa: E402
from _table import aligned, geometric_mean  # noqa: E402
from tvm import relax  # noqa: E402

import tvm_stitch  # noqa: E402
from tvm_stitch.compute.cpu.tiles import lanes_of  # noqa: E402
from tvm_stitch.compute.fourier.transform import Transform, radices_of  # noqa: E402
from tvm_stitch.importers.torch import from_exported_program  # noqa: E402
from tvm_stitch.relax.fourier.factors import factors_of  # noqa: E402
from tvm_stitch.target import resolve_target  # noqa: E402

BLOCK_SECONDS = 0.1
LENGTHS = [64, 128, 256, 400, 512, 1024, 2048, 4096, 8192, 16384]
TRANSFORMS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "fft": lambda x, n: torch.view_as_real(torch.fft.fft(torch.view_as_complex(x), n)),
    "rfft": lambda x, n: torch.view_as_real(torch.fft.rfft(x, n)),
    "irfft": lambda x, n: torch.fft.irfft(torch.view_as_complex(x), n),
}
"""Functions of real tensors: complex numbers have a last axis of two elements."""


class _Transform(torch.nn.Module):
    def __init__(self, kind: str, length: int):
        super().__init__()
        self.kind, self.length = kind, length

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return TRANSFORMS[self.kind](x, self.length)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each transform, length and number of rows, and return 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "kinds", nargs="*", default=list(TRANSFORMS), metavar="KIND", help=", ".join(TRANSFORMS)
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--blocks", type=int, default=7, help="blocks of calls of each")
    parser.add_argument("--errors", action="store_true", help="measure no times")
    options = parser.parse_args(arguments)
    unknown = [kind for kind in options.kinds if kind not in TRANSFORMS]
    if unknown or options.blocks < 1:
        parser.error(f"no transform: {unknown}" if unknown else "blocks are 1 at least")
    torch.set_num_threads(threads())
    head = ["transform", "length", "rows", "factors", "error", "PyTorch's error"]
    head += [] if options.errors else ["ours, us", "PyTorch, us", "ratio"]
    body, ratios = [], []
    for kind in options.kinds:
        for length in options.lengths:
            for rows in options.rows:
                module, x = _Transform(kind, length), _input(kind, length, rows)
                program = torch.export.export(module, (x,))
                built = tvm_stitch.compile(from_exported_program(program, unwrap_unit_return_tuple=True))
                ours, given = relax.VirtualMachine(built, tvm.cpu())["main"], tvm.runtime.tensor(x.numpy())
                errors = _errors(module, x, ours(given).numpy())
                factors = " x ".join(map(str, _factors(kind, length))) or "convolution"
                line = [kind, str(length), str(rows), factors, *(f"{each:.1e}" for each in errors)]
                if not options.errors:
                    a, b = _shortest([lambda: ours(given), lambda: module(x)], options.blocks)  # noqa: B023
                    ratios.append(b / a)
                    line += [f"{a:.0f}", f"{b:.0f}", f"{b / a:.2f}"]
                body.append(line)
                print("  ".join(line), file=sys.stderr, flush=True)
    print(aligned(head, body))
    if ratios:
        print(f"threads {threads()}, geometric mean of the ratios {geometric_mean(ratios):.2f}")
    return 0


def _shortest(contenders: Sequence[Callable[[], object]], blocks: int) -> list[float]:
    """Return the microseconds of the shortest call of each contender."""
    shortest = [float("inf")] * len(contenders)
    for _ in range(blocks):
        for at, contender in enumerate(contenders):
            time.sleep(0.01)
            until = time.perf_counter() + BLOCK_SECONDS
            while (start := time.perf_counter()) < until:
                contender()
                shortest[at] = min(shortest[at], time.perf_counter() - start)
    return [seconds * 1e6 for seconds in shortest]


def _input(kind: str, length: int, rows: int) -> torch.Tensor:
    shape = {"fft": (rows, length, 2), "rfft": (rows, length), "irfft": (rows, length // 2 + 1, 2)}[kind]
    numbers = np.random.default_rng(0).standard_normal(shape).astype("float32")
    return torch.from_numpy(numbers)


def _factors(kind: str, length: int) -> tuple[int, ...]:
    """Return the radices of the kernel of a transform, or the factors of its matmuls."""
    known: Any = {"fft": "complex", "rfft": "half", "irfft": "real"}[kind]
    transform, lanes = Transform(known, length, -1), lanes_of(resolve_target("native"))
    if transform.is_smooth and transform.suits_kernel(lanes):
        return radices_of(transform.complex_length, lanes)
    return factors_of(length)


def _errors(module: Any, x: torch.Tensor, result: np.ndarray) -> tuple[float, float]:
    """Return the errors of a result and of PyTorch's."""
    exact = module(x.double()).numpy()
    scale = float(np.abs(exact).max())
    return tuple(float(np.abs(each - exact).max()) / scale for each in (result, module(x).numpy()))  # type: ignore[return-value]


if __name__ == "__main__":
    sys.exit(main())
