#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare one step of a Llama-like decoder on a GPU with PyTorch and Inductor: kernels, time, error.

    python scripts/bench_decode.py                                   # 16 layers, hidden 2,048, bfloat16
    python scripts/bench_decode.py --bits 4 --layers 32 --hidden 4096 --inner 14336
    python scripts/bench_decode.py --tokens 2 --contenders stitched,libraries

``libraries`` is tvm_stitch with ``compute="libraries"``: products of few rows are left to cuBLASLt. Weights are random.
All contenders run as CUDA graphs, and take turns by blocks of calls. Errors are those of the scores relative to
PyTorch's in float32. The limit is the time in which the parameters are read once.

Exit code: 0 all are right, 1 one is not, 2 a usage error.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import _checkout  # noqa: F401  (puts the packages on the path)
from _gpu import need_gpu
from _table import aligned
from models.decoder_step import Decoder, as_relax, in_torch

CONTENDERS = ("stitched", "libraries", "inductor")
OPTIONS = (
    "--layers",
    "--hidden",
    "--heads",
    "--key-heads",
    "--inner",
    "--cache",
    "--words",
    "--tokens",
    "--dtype",
    "--bits",
)
"""The options of a decoder's sizes, in the order of its fields."""
BANDWIDTH = 4.56e12
"""Bytes a second that one kernel reads on an H200."""
TOLERANCE = 0.05
BLOCKS, CALLS = 7, 20

Run = Callable[[], Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each contender. Return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_sizes(parser)
    parser.add_argument("--contenders", default=",".join(CONTENDERS), help=", ".join(CONTENDERS))
    options = vars(parser.parse_args(arguments))
    contenders = options.pop("contenders").split(",")
    if unknown := [name for name in contenders if name not in CONTENDERS]:
        parser.error(f"no contender {unknown[0]}; there are {', '.join(CONTENDERS)}")
    need_gpu()
    return compare(Decoder(**options), contenders)


def add_sizes(parser: argparse.ArgumentParser, **defaults: Any) -> None:
    """Add the options of a decoder's sizes. Their names after parsing are those of its fields."""
    for name, field in zip(OPTIONS, fields(Decoder), strict=True):
        kind = str if field.name == "dtype" else int
        parser.add_argument(name, type=kind, default=defaults.get(field.name, field.default))


def compare(decoder: Decoder, contenders: Sequence[str]) -> int:
    """Time the contenders. Return 1 if a result is wrong, else 0."""
    import torch

    params = _drawn(decoder)
    with torch.no_grad():
        wide = [p.float() if p.dtype.is_floating_point else p for p in params]
        wanted = in_torch(decoder)(*wide)
        del wide
    runs: dict[str, Run] = {}
    rows: list[list[str]] = []
    for name in contenders:
        start = time.perf_counter()
        runs[name], kernels, result = _inductor(decoder, params) if name == "inductor" else _stitched(
            decoder, params, name
        )  # fmt: skip
        error = float((result.float() - wanted).abs().max() / wanted.abs().max())
        rows.append([name, str(kernels), "", f"{error:.1e}", f"{time.perf_counter() - start:.0f}"])
    spent: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(BLOCKS):
        for name, run in runs.items():
            spent[name].append(_microseconds(run))
    for row in rows:
        row[2] = f"{statistics.median(spent[row[0]]):.0f}"
    limit = sum(p.numel() * p.element_size() for p in params) / BANDWIDTH
    print(f"{decoder}")
    print(f"parameters are read in {limit * 1e6:.0f} us")
    print(aligned(["contender", "kernels", "us", "error", "compile, s"], rows))
    return int(any(float(row[3]) > TOLERANCE for row in rows))


def _drawn(decoder: Decoder) -> list[Any]:
    import torch

    generator = torch.Generator(device="cuda").manual_seed(0)
    drawn = []
    for name, shape, dtype in decoder.parameters():
        if name == "at":  # the last tokens of the cache
            drawn.append(torch.arange(decoder.cache - decoder.tokens, decoder.cache, device="cuda"))
            continue
        if dtype == "uint32":
            numbers = torch.randint(
                -(2**31), 2**31 - 1, shape, device="cuda", dtype=torch.int32, generator=generator
            )
            drawn.append(numbers.view(torch.uint32))
            continue
        values = torch.randn(shape, device="cuda", generator=generator)
        if name.endswith("_scale"):
            values = values.abs() * 0.003
        elif len(shape) == 2:
            values *= shape[1] ** -0.5
        drawn.append(values.to(getattr(torch, dtype)))
    return drawn


def _stitched(decoder: Decoder, params: Sequence[Any], name: str) -> tuple[Run, int, Any]:
    """Return a call, the kernels of a step, and the scores."""
    import torch
    import tvm
    from tvm import relax

    import tvm_stitch

    compute = "auto" if name == "stitched" else "libraries"
    config = tvm_stitch.StitchConfig(cuda_graph=True, compute=compute)
    executable = tvm_stitch.compile(as_relax(decoder), tvm.target.Target("cuda"), config)
    function = relax.VirtualMachine(executable, tvm.cuda())["main"]
    inputs = [tvm.runtime.from_dlpack(p) for p in params]

    def run() -> Any:
        return function(*inputs)

    return run, _kernels(run), torch.from_dlpack(run()[0]).clone()


def _inductor(decoder: Decoder, params: Sequence[Any]) -> tuple[Run, int, Any]:
    import torch

    for param in params:  # caches that are changed would keep it from CUDA graphs
        torch._dynamo.mark_static_address(param)
    function = torch.compile(in_torch(decoder), mode="reduce-overhead")

    def run() -> Any:
        with torch.no_grad():
            return function(*params)

    for _ in range(3):
        run()
    return run, _kernels(run), run().clone()


def _kernels(run: Run) -> int:
    import torch
    from _device_events import device_events

    def calls() -> None:
        run()
        torch.cuda.synchronize()

    calls()
    return len(device_events(calls))


def _microseconds(run: Run) -> float:
    import torch

    for _ in range(3):
        run()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(CALLS):
        run()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / CALLS * 1e6


if __name__ == "__main__":
    sys.exit(main())
