#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare the times that ``tvm-stitch bench`` gives PyTorch and ONNX Runtime with those of a plain loop of calls.

    python scripts/check_bench.py
    python scripts/check_bench.py --busy                    # another process keeps a core busy
    python scripts/check_bench.py --models lstm unet-block --rounds 9

Each model of ``bench_models.py`` is exported to a ``.pt2`` and an ``.onnx`` file. ``bench`` starts a process for
the peer, and stops it while it is not its turn. Here it is started and asked in the same way. The plain loop loads
the file by the peer alone, in a process of its own. Its median call is what a user would find. Turns of both go
round. The table has the medians of the calls and their fastest. As in ``bench``, the medians count, and on a busy
machine the fastest calls. The exit code is 1 if such a ratio is off by more than 10%.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import _checkout  # noqa: F401  puts the packages on the path
from _child_process import LinesOfJson
from _table import aligned

from tvm_stitch.cli.commands.bench import is_busy
from tvm_stitch.execution.timing import Times
from tvm_stitch.support.cores import without_our_choice

MODELS = ("lstm", "crnn-layers", "dien", "unet-block", "mlp")
"""Models that need no package but PyTorch."""
PEERS = {".pt2": "PyTorch", ".onnx": "ONNX Runtime"}
TURN, CALLS, LONGEST = 0.4, 80, 6.0
"""Least seconds and calls of a turn of the loop, and the seconds that decide if calls take long.

On a busy machine the first calls of PyTorch take a hundred times as long, until the system moves its threads apart.
"""
MOST = 0.10
"""The greatest difference of a ratio from 1."""


def exported(name: str, size: str, folder: Path) -> None:
    """Write a model's ``.pt2`` and ``.onnx`` files and its inputs to a folder."""
    import numpy as np
    import torch

    torch.manual_seed(0)
    if name == "mlp":
        wide = 512 if size == "full" else 64
        layers = [torch.nn.Linear(wide, wide), torch.nn.GELU(), torch.nn.LayerNorm(wide)] * 3
        module: Any = torch.nn.Sequential(*layers)
        inputs: Sequence[Any] = [torch.randn(64, wide)]
    else:
        from models.registry import MODELS as KNOWN

        module, inputs = KNOWN[name].build(size, 1)
    module = module.eval()
    np.savez(folder / f"{name}.npz", *(each.numpy() for each in inputs))
    torch.export.save(torch.export.export(module, tuple(inputs)), str(folder / f"{name}.pt2"))
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, tuple(inputs), str(folder / f"{name}.onnx"), dynamo=False)


def call_of(file: Path) -> Callable[[], Any]:
    """Return a call of a model by PyTorch or ONNX Runtime, as their pages show it."""
    import numpy as np

    with np.load(file.with_suffix(".npz")) as archive:
        arrays = [archive[name] for name in archive.files]
    if file.suffix == ".onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        given = dict(zip((each.name for each in session.get_inputs()), arrays, strict=True))
        return lambda: session.run(None, given)
    import torch

    module, inputs = torch.export.load(str(file)).module(), [torch.from_numpy(each) for each in arrays]

    def call() -> Any:
        with torch.no_grad():
            return module(*inputs)

    return call


def turn(call: Callable[[], Any], seconds: float = TURN, calls: int = CALLS) -> list[float]:
    """Return the seconds of each call of the second half of a turn."""
    spent: list[float] = []
    begin = now = time.perf_counter()
    while now - begin < seconds or (len(spent) < calls and now - begin < LONGEST):
        call()
        start, now = now, time.perf_counter()
        spent.append(now - start)
    return spent[len(spent) // 2 :]


def loop(file: Path) -> None:
    """Answer each line by the seconds of the calls of a turn."""
    call = call_of(file)
    for _ in sys.stdin:
        print(json.dumps(turn(call)), flush=True)


def spin() -> None:
    """Keep a core busy."""
    while True:
        pass


def compared(file: Path, rounds: int) -> tuple[Times, Times]:
    """Return the times of the peer's calls in ``bench``, and those in the plain loop."""
    from tvm_stitch.cli.contenders.process import processes
    from tvm_stitch.cli.contenders.ready import PEER
    from tvm_stitch.cli.program import parser

    alone = LinesOfJson([__file__, "--loop", str(file)], environment=without_our_choice(os.environ))
    found: dict[str, list[float]] = {"bench": [], "loop": []}
    with processes((PEER,), parser().parse_args(["bench", str(file)])) as contenders:
        contenders[PEER].prepared()
        for number in range(rounds + 1):
            measured = contenders[PEER].turn()
            time.sleep(0.1)
            alone.write("turn")
            plain = alone.read(300)
            time.sleep(0.1)
            if plain is None:
                raise SystemExit(f"error: the loop of {file.name} ended")
            if number:  # the first turn loads the model
                found["bench"] += measured
                found["loop"] += plain
    alone.close()
    return Times(tuple(found["bench"])), Times(tuple(found["loop"]))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--size", choices=["full", "small"], default="small")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--busy", action="store_true", help="keep a core busy")
    parser.add_argument("--loop", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.loop:
        loop(args.loop)
        return 0
    rows, wrong = [], False
    busy = multiprocessing.Process(target=spin, daemon=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for model in args.models:
            exporter = multiprocessing.get_context("spawn").Process(
                target=exported, args=(model, args.size, folder)
            )
            exporter.start()
            exporter.join()
        if args.busy:
            busy.start()
        load, processors = os.getloadavg()[0], len(os.sched_getaffinity(0))
        disturbed = args.busy or is_busy(load, processors)
        for model in args.models:
            for suffix, peer in PEERS.items():
                measured, plain = compared((folder / model).with_suffix(suffix), args.rounds)
                median, fastest = measured.median / plain.median, measured.fastest / plain.fastest
                wrong |= abs((fastest if disturbed else median) - 1) > MOST
                seconds = (measured.median, plain.median, measured.fastest, plain.fastest)
                shown = [f"{each * 1e3:.3f}" for each in seconds]
                rows.append([model, peer, *shown[:2], f"{median:.2f}", *shown[2:], f"{fastest:.2f}"])
                print(f"{model}, {peer}: {median:.2f}, {fastest:.2f}", file=sys.stderr, flush=True)
    if args.busy:
        busy.kill()
    head = ["model", "peer", "bench, ms", "a plain loop, ms", "ratio", "fastest", "fastest", "ratio"]
    print(aligned(head, rows))
    which = "fastest calls" if disturbed else "medians"
    print(f"load average before: {load:.1f}, on {processors} processors: the {which} count")
    return int(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
