#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare one step of a Llama-like decoder on this machine's CPU with llama.cpp and PyTorch: time and error.

    python scripts/bench_decode_cpu.py                                        # 8 layers, hidden 1,024, all types
    python scripts/bench_decode_cpu.py --types bfloat16 4bit --contenders stitched,llama.cpp
    python scripts/bench_decode_cpu.py --processor-time                       # on a busy machine

Types are ``float32``, ``bfloat16``, and words of ``8bit`` or ``4bit`` integers with a scale for each 32 of them. The
last two are multiplied exactly, by activations of float32. llama.cpp has ``Q8_0`` and ``Q4_0`` in their place, whose
activations it rounds to 8 bits. Its weights are not laid out anew (``REPACKED`` in ``decoding/gguf_step.py``). It needs
the packages ``llama-cpp-python`` and ``gguf``. Weights are random.

All contenders take turns by blocks of calls, and the shortest call counts: other programs disturb long calls more than
short ones. The limit is the time of a maximum over as many bytes as the weights have. Errors are those of the scores,
relative to PyTorch's in float64.

Exit code: 0 all are right, 1 one is not, 2 a usage error.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import _checkout  # noqa: F401  (puts the packages on the path)

from tvm_stitch.support.cores import threads, use_all_cores

use_all_cores()
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads of PyTorch that spin would take TVM's cores

import ml_dtypes  # noqa: E402
import numpy as np  # noqa: E402
import tvm  # noqa: E402
from _table import aligned  # noqa: E402
from decoding.gguf_step import LlamaCpp  # noqa: E402
from models.decoder_step import Decoder, as_relax, drawn, in_torch  # noqa: E402
from tvm import relax  # noqa: E402

import tvm_stitch  # noqa: E402

TYPES: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "8bit": {"dtype": "float32", "bits": 8},
    "4bit": {"dtype": "float32", "bits": 4},
}
CONTENDERS = ("stitched", "llama.cpp", "torch")
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.05, "8bit": 1e-4, "4bit": 1e-4}
ROUNDS, CALLS = 12, 5

Run = Callable[[], Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table. Return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--types", nargs="+", default=list(TYPES), choices=list(TYPES))
    parser.add_argument("--contenders", default=",".join(CONTENDERS), help=", ".join(CONTENDERS))
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--inner", type=int, default=2816)
    parser.add_argument("--cache", type=int, default=512)
    parser.add_argument(
        "--processor-time", action="store_true", help="times of all threads, not of the clock"
    )
    options = parser.parse_args(arguments)
    contenders = options.contenders.split(",")
    if unknown := [name for name in contenders if name not in CONTENDERS]:
        parser.error(f"no contender {unknown[0]}; there are {', '.join(CONTENDERS)}")
    if "llama.cpp" in contenders and not all(map(find_spec, ("llama_cpp", "gguf"))):
        parser.error("llama.cpp needs packages: pip install llama-cpp-python gguf")
    clock = time.process_time if options.processor_time else time.perf_counter
    rows, wrong = [], False
    for name in options.types:
        sizes = {"layers": options.layers, "hidden": options.hidden, "inner": options.inner}
        heads = {"heads": options.hidden // 64, "key_heads": max(1, options.hidden // 256)}
        compared = compare(Decoder(cache=options.cache, **sizes, **heads, **TYPES[name]), contenders, clock)
        for contender, milliseconds, gigabytes, error in compared:
            rows.append([name, contender, f"{milliseconds:.2f}", f"{gigabytes:.1f}", error])
            wrong |= contender == "stitched" and float(error) > TOLERANCE[name]
    print(
        f"{threads()} threads, {'processor' if options.processor_time else 'wall'} time of the shortest call"
    )
    print(aligned(["weights", "contender", "ms", "GB/s", "error"], rows))
    return int(wrong)


def compare(
    decoder: Decoder, contenders: Sequence[str], clock: Callable[[], float]
) -> list[tuple[str, float, float, str]]:
    """Return the milliseconds, the gigabytes of weights a second, and the error of each contender and of a read."""
    arrays = drawn(decoder, np.random.default_rng(0))
    read = sum(a.nbytes for a, (name, _, _) in zip(arrays, decoder.parameters()) if _is_weight(name))
    with tempfile.TemporaryDirectory() as folder:
        runs: dict[str, Run] = {}
        errors = dict.fromkeys(("read", *contenders), "")
        wanted = _in_float64(decoder, arrays)
        for name in contenders:
            if name == "llama.cpp":
                runs[name] = LlamaCpp(decoder, Path(folder), threads()).step
                continue
            runs[name], scores = (_stitched if name == "stitched" else _torch)(decoder, arrays)
            errors[name] = f"{np.abs(scores - wanted).max() / np.abs(wanted).max():.1e}"
        runs["read"] = _read(read)
        best = dict.fromkeys(runs, float("inf"))
        for _ in range(ROUNDS):
            for name, run in runs.items():
                run()
                for _ in range(CALLS):
                    start = clock()
                    run()
                    best[name] = min(best[name], clock() - start)
        return [(name, 1e3 * best[name], read / best[name] / 1e9, errors[name]) for name in runs]


def _is_weight(name: str) -> bool:
    return not name.startswith(("x", "cosine", "sine", "at", "norm", "second", "last", "keys", "values"))


def _tensors(arrays: Sequence[np.ndarray]) -> list[Any]:
    import torch

    return [
        torch.from_numpy(a.view(np.uint16).copy()).view(torch.bfloat16)
        if a.dtype == ml_dtypes.bfloat16
        else torch.from_numpy(a.copy())
        for a in arrays
    ]


def _in_float64(decoder: Decoder, arrays: Sequence[np.ndarray]) -> np.ndarray:
    import torch

    params = [p.double() if p.dtype.is_floating_point else p for p in _tensors(arrays)]
    with torch.no_grad():
        return in_torch(decoder)(*params).numpy().astype("float64").reshape(-1)


def _stitched(decoder: Decoder, arrays: Sequence[np.ndarray]) -> tuple[Run, np.ndarray]:
    executable = tvm_stitch.compile(as_relax(decoder), tvm.target.Target(_host()))
    function = relax.VirtualMachine(executable, tvm.cpu())["main"]
    inputs = [tvm.runtime.tensor(a) for a in arrays]

    def run() -> Any:
        return function(*inputs)

    return run, run()[0].numpy().astype("float64").reshape(-1)


def _host() -> dict[str, str]:
    from tvm.target.codegen import llvm_get_system_cpu

    return {"kind": "llvm", "mcpu": llvm_get_system_cpu()}


def _torch(decoder: Decoder, arrays: Sequence[np.ndarray]) -> tuple[Run, np.ndarray]:
    import torch

    torch.set_num_threads(threads())
    params = _tensors(arrays)
    step = torch.compile(in_torch(decoder)) if not decoder.bits else in_torch(decoder)

    def run() -> Any:
        with torch.no_grad():
            return step(*params)

    return run, run().double().numpy().reshape(-1)


def _read(count: int) -> Run:
    import torch

    memory = torch.ones(count // 4, dtype=torch.float32)
    return memory.max


if __name__ == "__main__":
    sys.exit(main())
