#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare the times of ``tvm-stitch bench`` with those of plain loops, for PyTorch, ONNX Runtime and this package.

    python scripts/check_bench.py
    python scripts/check_bench.py --busy                    # another process keeps a core busy
    python scripts/check_bench.py --models lstm unet-block --rounds 9

Each model of ``bench_models.py`` is exported to a ``.pt2`` and an ``.onnx`` file. ``bench`` starts a process for
a contender, and stops it while it is not its turn. Here it is started and asked in the same way. The plain loop
loads the file by that runtime alone, in a process of its own. Its median call is what a user would find. Turns of
both alternate, and so does their order.

The table has the medians of the calls and their fastest. As in ``bench``, the medians count, and on a busy machine
the fastest calls. The exit code is 1 if such a ratio is off by more than 10%. The last two columns count the turns
whose median is more than 3 times the fastest call: threads that wait for each other shared a processor in them.
A row has more rounds until 3 turns of both are not slow.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import multiprocessing
import os
import statistics
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
from tvm_stitch.cli.contenders import ready
from tvm_stitch.cli.contenders.ready import PEER, STITCHED
from tvm_stitch.execution.timing import Times
from tvm_stitch.support.cores import without_our_choice

MODELS = ("lstm", "crnn-layers", "dien", "unet-block", "mlp")
"""Models that need no package but PyTorch."""
ROWS = {
    "PyTorch": (".pt2", PEER),
    "tvm_stitch, .pt2": (".pt2", STITCHED),
    "ONNX Runtime": (".onnx", PEER),
    "tvm_stitch, .onnx": (".onnx", STITCHED),
}
"""The file and the contender of ``bench`` for each row of a model."""
TURN, CALLS, LONGEST = 2 * ready.PHASE, 2 * ready.LEAST_CALLS, 2 * ready.LONGEST
"""Least seconds and calls of a turn of the loop, and the seconds that decide if calls take long. As in ``bench``.

On a busy machine the first calls of PyTorch take a hundred times as long, until the system moves its threads apart.
Longer turns of the loop would have fewer such calls than those of ``bench``.
"""
GOOD, MORE = 3, 4
"""Turns of both that have to be not slow before a row ends, if that takes at most so many times the rounds."""
MOST = 0.10
"""The greatest difference of a ratio from 1."""
SLOW = 3.0
"""A turn is slow if its median is this many times the fastest call of the row."""


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


def call_of(file: Path, contender: str = PEER) -> Callable[[], Any]:
    """Return a call of a model as the page of the runtime shows it.

    Args:
        file: the ``.pt2`` or ``.onnx`` file.
        contender: ``STITCHED``, or ``PEER`` for PyTorch or ONNX Runtime.
    """
    import numpy as np

    with np.load(file.with_suffix(".npz")) as archive:
        arrays = [archive[name] for name in archive.files]
    if contender == STITCHED:
        import tvm_stitch

        model = tvm_stitch.compile(str(file))
        if file.suffix == ".onnx":
            return lambda: model(*arrays)
        import torch

        given = [torch.from_numpy(each).clone() for each in arrays]  # to memory that PyTorch has aligned
        return lambda: model(*given)
    if file.suffix == ".onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        named = dict(zip((each.name for each in session.get_inputs()), arrays, strict=True))
        return lambda: session.run(None, named)
    import torch

    module, inputs = torch.export.load(str(file)).module(), [torch.from_numpy(x).clone() for x in arrays]

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


def loop(file: Path, contender: str) -> None:
    """Answer each line by the seconds of the calls of a turn."""
    call = call_of(file, contender)
    for _ in sys.stdin:
        print(json.dumps(turn(call)), flush=True)


def spin() -> None:
    """Keep a core busy."""
    while True:
        pass


Turns = list[list[float]]
"""The seconds of the calls of each turn."""


def compared(file: Path, contender: str, rounds: int) -> tuple[Turns, Turns]:
    """Return the turns of a contender's calls in ``bench``, and those of the plain loop."""
    from tvm_stitch.cli.contenders.process import processes
    from tvm_stitch.cli.program import parser

    command = [__file__, "--loop", str(file), "--contender", contender]
    alone = LinesOfJson(command, environment=without_our_choice(os.environ))
    found: dict[str, Turns] = {"bench": [], "loop": []}
    with processes((contender,), parser().parse_args(["bench", str(file)])) as contenders:
        contenders[contender].prepared()
        for number in range(MORE * rounds + 1):
            if number > rounds and enough(*found.values()):
                break
            for name in ("bench", "loop") if number % 2 else ("loop", "bench"):
                seconds = contenders[contender].turn() if name == "bench" else _asked(alone, file)
                time.sleep(0.1)
                if number:  # the first turn loads the model
                    found[name].append(seconds)
    alone.close()
    return found["bench"], found["loop"]


def _asked(alone: LinesOfJson, file: Path) -> list[float]:
    alone.write("turn")
    seconds: list[float] | None = alone.read(300)
    if seconds is None:
        raise SystemExit(f"error: the loop of {file.name} ended")
    return seconds


def enough(bench: Turns, plain: Turns) -> bool:
    """Return whether both have enough turns that are not slow. A fastest call of slow turns alone is chance."""
    least = min(map(min, (*bench, *plain)))
    return all(len(each) - slow_turns(each, least) >= min(GOOD, len(each)) for each in (bench, plain))


def slow_turns(turns: Turns, fastest: float) -> int:
    """Return the number of turns whose median call takes more than ``SLOW`` times the fastest call."""
    return sum(statistics.median(each) > SLOW * fastest for each in turns)


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
    parser.add_argument("--contender", default=PEER, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.loop:
        loop(args.loop, args.contender)
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
            for title, (suffix, contender) in ROWS.items():
                turns = compared((folder / model).with_suffix(suffix), contender, args.rounds)
                bench, plain = (Times(tuple(itertools.chain(*each))) for each in turns)
                median, fastest = bench.median / plain.median, bench.fastest / plain.fastest
                wrong |= abs((fastest if disturbed else median) - 1) > MOST
                seconds = (bench.median, plain.median, bench.fastest, plain.fastest)
                shown = [f"{each * 1e3:.3f}" for each in seconds]
                least = min(bench.fastest, plain.fastest)
                slow = [f"{slow_turns(each, least)} of {len(each)}" for each in turns]
                rows.append([model, title, *shown[:2], f"{median:.2f}", *shown[2:], f"{fastest:.2f}", *slow])
                print(f"{model}, {title}: {median:.2f}, {fastest:.2f}", file=sys.stderr, flush=True)
    if args.busy:
        busy.kill()
    head = ["model", "runtime", "bench, ms", "a plain loop, ms", "ratio", "fastest", "fastest", "ratio"]
    print(aligned([*head, "slow turns", "slow turns"], rows))
    which = "fastest calls" if disturbed else "medians"
    print(f"load average before: {load:.1f}, on {processors} processors: the {which} count")
    return int(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
