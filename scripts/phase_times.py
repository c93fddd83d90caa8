#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time the phases of a decoder's largest kernel on a GPU: when the blocks begin them, and when they wait for others.

    python scripts/phase_times.py                                # a layer for one token, bfloat16
    python scripts/phase_times.py --tokens 8
    python scripts/phase_times.py --bits 4 --hidden 4096 --inner 14336

The CUDA C of the kernel gets stamps of the GPU's timer. They are where a phase begins, where the tasks of its stages
begin, and where a block arrives at the grid barrier. The table has the first, the mean and the last block of each, in
microseconds since the first block began. Steps run as a CUDA graph, and one of them late in a row is shown. The timer
has steps of 32 ns.

Exit code: 0, 1 if no kernel has a grid barrier, 2 a usage error.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import _checkout  # noqa: F401  (puts the packages on the path)
import bench_decode
from _gpu import need_gpu
from _table import aligned
from models.decoder_step import Decoder

LAYERS, STEP = 4, 200
"""Layers of the model, and the launch of the kernel whose stamps are shown."""
STAMPS = 64
"""Most stamps of a block."""

_HEAD = r"""
static __device__ unsigned long long phase_stamps[256 * @stamps@];
static __device__ unsigned phase_blocks;
static __device__ __forceinline__ void phase_stamp(int number) {
  if (threadIdx.x == 0) asm volatile("mov.u64 %0, %globaltimer;" : "=l"(phase_stamps[blockIdx.x * @stamps@ + number]));
}
// The last block of a launch prints the stamps of all.
static __device__ __noinline__ void phase_print(int count) {
  if (threadIdx.x != 0) return;
  __threadfence();
  if (atomicAdd(&phase_blocks, 1u) != gridDim.x * @step@ - 1) return;
  unsigned long long zero = ~0ull;
  for (int block = 0; block < gridDim.x; ++block) zero = min(zero, phase_stamps[block * @stamps@]);
  for (int number = 0; number < count; ++number) {
    unsigned long long low = ~0ull, high = 0, sum = 0;
    for (int block = 0; block < gridDim.x; ++block) {
      const unsigned long long at = *(volatile unsigned long long*)(phase_stamps + block * @stamps@ + number) - zero;
      low = min(low, at), high = max(high, at), sum += at;
    }
    printf("PHASE %d %llu %llu %llu\n", number, low, sum / gridDim.x, high);
  }
}
"""
_KERNEL = re.compile(r'extern "C" __global__ [^;{]*?(\w+)\([^;{()]*\) \{\n')
_BARRIER, _TASKS = "  tvm_builtin_cuda_grid_sync();", re.compile(r"  for \(int64_t task\w* = ")


def instrument(source: str) -> tuple[str, str, list[str]]:
    """Return CUDA C with stamps in the kernel of the most grid barriers, its name, and a label for each stamp.

    Raises:
        ValueError: if no kernel has a grid barrier.
    """
    kernels = list(_KERNEL.finditer(source))
    ends = [*(each.start() for each in kernels[1:]), len(source)]
    bodies = [source[each.end() : end].split("\n") for each, end in zip(kernels, ends)]
    counts = [lines.count(_BARRIER) for lines in bodies]
    if not any(counts):
        raise ValueError("no kernel has a grid barrier")
    chosen = counts.index(max(counts))
    labels: list[str] = []

    def stamp(label: str) -> str:
        labels.append(label)
        return f"  phase_stamp({len(labels) - 1});"

    phase, lines = 0, [stamp("phase 0 begins")]
    last = max(i for i, line in enumerate(bodies[chosen]) if line == "}")
    for i, line in enumerate(bodies[chosen]):
        if line == _BARRIER:
            lines += [stamp(f"phase {phase} ends"), line, stamp(f"phase {phase + 1} begins")]
            phase += 1
        elif _TASKS.match(line):
            lines += [stamp("tasks"), line]
        elif i == last:
            lines += [stamp(f"phase {phase} ends"), f"  phase_print({len(labels)});", line]
        else:
            lines.append(line)
    head = _HEAD.replace("@stamps@", str(STAMPS)).replace("@step@", str(STEP))
    first = kernels[0].start()
    text = (
        source[:first]
        + head
        + source[first : kernels[chosen].end()]
        + "\n".join(lines)
        + source[ends[chosen] :]
    )
    return text, kernels[chosen][1], labels


def table(labels: Sequence[str], printed: str) -> str:
    """Return the table of what the kernel printed."""
    rows = [["", "first block, us", "mean, us", "last block, us"]]
    for line in printed.splitlines():
        if line.startswith("PHASE "):
            number, *nanoseconds = map(int, line.split()[1:])
            rows.append([labels[number], *(f"{each / 1e3:.2f}" for each in nanoseconds)])
    return aligned(rows[0], rows[1:])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table. Return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    bench_decode.add_sizes(parser, layers=LAYERS)
    options = vars(parser.parse_args(arguments))
    need_gpu()
    import tvm_ffi
    from tvm.support import nvcc

    known: dict[str, Any] = {}
    compiled = nvcc.tvm_callback_cuda_compile

    def with_stamps(code: str, *rest: Any) -> Any:
        try:
            code, known["name"], known["labels"] = instrument(code)
        except ValueError:
            pass  # another module
        return compiled(code, *rest)

    tvm_ffi.register_global_func("tvm_callback_cuda_compile", with_stamps, override=True)
    decoder = Decoder(**options)
    run, kernels, _ = bench_decode._stitched(decoder, bench_decode._drawn(decoder), "stitched")
    if "name" not in known:
        print("no kernel has a grid barrier", file=sys.stderr)
        return 1
    printed = _printed(run)
    print(f"{decoder}\n{known['name']}, {kernels} kernels a step")
    print(table(known["labels"], printed))
    return 0


def _printed(run: bench_decode.Run) -> str:
    """Return what kernels print in many steps."""
    import torch

    torch.cuda.synchronize()
    sys.stdout.flush()
    with tempfile.TemporaryFile() as file:
        before = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            for _ in range(STEP):
                run()
            torch.cuda.synchronize()
        finally:
            os.dup2(before, 1)
            os.close(before)
        file.seek(0)
        return file.read().decode()


if __name__ == "__main__":
    sys.exit(main())
