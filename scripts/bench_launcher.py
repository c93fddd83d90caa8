#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time an encoder on a CPU next to other threads: a busy core, ONNX Runtime and PyTorch in the process, a second model.

    python scripts/bench_launcher.py
    python scripts/bench_launcher.py --threads 2 --blocks 15 --scenarios alone busy
    python scripts/bench_launcher.py --model resnet18 --scenarios alone
    python scripts/bench_launcher.py --launcher before=FOLDER    # a folder with another native/ of the launcher

Contenders are a model with the launcher of tvm_stitch, the same model with TVM's thread pool, and ONNX Runtime. Each
has a process of its own. Models of ``bench_models.py`` are measured without ONNX Runtime. Blocks of calls go round the
contenders and scenarios. A block's time is the median of its calls. The table shows the median of the blocks, and its
ratio to the contender's blocks alone. Below it are the cores that threads of ONNX Runtime and PyTorch keep busy after a
call.

Exit code: 0, or 1 if the results differ, 2 for a usage error.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from _child_process import LinesOfJson
from _table import aligned

CONTENDERS = {
    "launcher": "launcher of tvm_stitch",
    "tvm": "TVM's thread pool",
    "onnxruntime": "ONNX Runtime",
}
SCENARIOS = {
    "alone": "one call after the other",
    "busy": "another process keeps a core busy",
    "onnxruntime": "each behind a call of ONNX Runtime",
    "onnxruntime-asleep": "the same, and its threads do not spin",
    "pytorch": "each behind an operation of PyTorch",
    "pytorch-asleep": "the same, and its threads do not spin",
    "threads": "two models in two threads",
}
PASSIVE = {"OMP_WAIT_POLICY": "passive"}
"""Lets threads of PyTorch sleep when an operation ends. It is read when PyTorch is loaded."""
ENCODER = "encoder"
"""The demonstration's encoder, with two layers."""

Call = Callable[[], Any]


def calls_of(folder: Path, contender: str) -> list[Call]:
    """Return calls of two instances of a contender's model, written to ``folder``."""
    import numpy as np

    given = dict(np.load(folder / "inputs.npz"))
    if contender == "onnxruntime":
        return [onnxruntime_call(folder) for _ in range(2)]
    import tvm
    from tvm import relax

    calls: list[Call] = []
    for number in range(2):
        library = tvm.runtime.load_module(str(folder / f"{contender}{number}.so"))
        main = relax.VirtualMachine(library, tvm.cpu())["main"]
        tensors = [tvm.runtime.tensor(value) for value in given.values()]
        calls.append(partial(main, *tensors))
    return calls


def onnxruntime_call(folder: Path, spins: bool = True) -> Call:
    """Return a call of the encoder by ONNX Runtime, whose threads spin behind it by default."""
    import numpy as np
    import onnxruntime

    given = dict(np.load(folder / "encoder.npz"))
    options = onnxruntime.SessionOptions()
    if not spins:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(
        folder / "encoder.onnx", options, providers=["CPUExecutionProvider"]
    )
    return lambda: session.run(None, given)


def pytorch_call() -> Call:
    """Return a call of a matrix product and a softmax of PyTorch."""
    import torch

    left, right = torch.randn(256, 384), torch.randn(384, 384)
    return lambda: torch.softmax(left @ right, -1)


def before_calls(scenario: str, folder: Path) -> Call | None:
    """Return what runs in front of each call of a scenario, or None."""
    if scenario.startswith("onnxruntime"):
        return onnxruntime_call(folder, scenario == "onnxruntime")
    return pytorch_call() if scenario.startswith("pytorch") else None


def busy_cores(call: Call, blocks: int = 20, seconds: float = 1e-3) -> float:
    """Return how many cores threads of this process keep busy while it sleeps for ``seconds`` behind a call."""
    shares = []
    for _ in range(blocks):
        call()
        begin, spent = time.perf_counter(), time.process_time()
        time.sleep(seconds)
        shares.append((time.process_time() - spent) / (time.perf_counter() - begin))
        time.sleep(0.05)  # until they sleep
    return statistics.median(shares)


def in_two_threads(calls: Sequence[Call], count: int) -> list[float]:
    """Return the seconds of all calls of two threads, each of which calls its model."""
    spent: list[list[float]] = [[], []]
    start = threading.Barrier(2)

    def work(number: int) -> None:
        start.wait()
        spent[number] = timed(calls[number], count)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return spent[0] + spent[1]


def timed(call: Call, count: int, before: Call | None = None) -> list[float]:
    """Return the seconds of each of ``count`` calls. ``before`` is called in front of each."""
    spent = []
    for _ in range(count):
        if before is not None:
            before()
        begin = time.perf_counter()
        call()
        spent.append(time.perf_counter() - begin)
    return spent


def child(folder: Path, contender: str) -> None:
    """Answer each line ``[scenario, calls]`` by the seconds of its calls. No calls ask for the busy cores before one.

    Writes the model's result first.
    """
    import numpy as np

    calls = calls_of(folder, contender)
    result = calls[0]()
    first = result if hasattr(result, "numpy") else result[0]
    while not hasattr(first, "shape"):
        first = first[0]
    np.save(folder / f"{contender}.npy", first if contender == "onnxruntime" else first.numpy())
    before: dict[str, Call | None] = {}
    for line in sys.stdin:
        scenario, count = json.loads(line)
        if scenario not in before:
            before[scenario] = before_calls(scenario, folder)
        behind = before[scenario]
        if count == 0:
            print(json.dumps([busy_cores(behind) if behind else 0.0]), flush=True)
            continue
        timed(calls[0], 3, behind)
        if scenario == "threads":
            spent = in_two_threads(calls, count)
        else:
            spent = timed(calls[0], count, behind)
        print(json.dumps(spent), flush=True)


def spin() -> None:
    """Keep a core busy."""
    while True:
        pass


def compile_into(folder: Path, model: str, threads: int, native: str, contenders: Sequence[str]) -> None:
    """Write a model for some contenders, its inputs, and the encoder as ONNX too.

    ``native`` is a folder with other sources of the launcher, or "".
    """
    import _checkout  # noqa: F401  (puts the packages on the path)
    import numpy as np
    import onnx
    from models.job import Job
    from models.load import Loaded, relax_module

    import tvm_stitch
    from tvm_stitch.compute.cpu.launch import launcher
    from tvm_stitch.deploy.embedded import Embedded
    from tvm_stitch.testing.workloads.bert import BertConfig, build_bert, random_inputs

    if native:
        headers = tuple(sorted(Path(native).glob("*.h")))
        launcher.CODE = Embedded(Path(native) / "launcher.cc", "a launcher of parallel regions", headers)
    config = BertConfig(layers=2)
    mod = build_bert(config)
    onnx.save(mod, str(folder / "encoder.onnx"))
    for name in ("encoder.npz", "inputs.npz"):
        np.savez(folder / name, **random_inputs(config))  # type: ignore[arg-type]
    if model != ENCODER:
        job = Job(model, "full", 1, "float32", "native", threads, str(folder))
        loaded = Loaded.of(job)
        mod = relax_module(job, loaded)
        np.savez(folder / "inputs.npz", *loaded.arrays(job.dtype))
    for contender in contenders:
        options = tvm_stitch.StitchConfig(tvm_thread_pool=contender == "tvm")
        executable = tvm_stitch.compile(mod, config=options)
        for number in range(2):
            tvm_stitch.export_library(executable, folder / f"{contender}{number}.so")


def measure(
    folder: Path, contenders: Sequence[str], scenarios: Sequence[str], blocks: int, calls: int
) -> dict[tuple[str, str], list[float]]:
    """Return the milliseconds of each block by contender and scenario."""
    children = {
        (name, passive): LinesOfJson(
            [__file__, "--child", str(folder), name], environment=PASSIVE if passive else None
        )
        for name in contenders
        for passive in (False, True)
    }
    medians: dict[tuple[str, str], list[float]] = {}
    for scenario in scenarios:
        process = children[contenders[0], scenario == "pytorch-asleep"]
        process.write([scenario, 0])
        medians["", scenario] = process.read(120) or [0.0]
    for _ in range(blocks):
        for scenario in scenarios:
            for name in contenders:
                if scenario.startswith(name):
                    continue
                process = children[name, scenario == "pytorch-asleep"]
                time.sleep(0.1)  # threads of the last contender spin
                busy = multiprocessing.Process(target=spin, daemon=True)
                if scenario == "busy":
                    busy.start()
                process.write([scenario, calls])
                spent = process.read(120)
                if scenario == "busy":
                    busy.kill()
                    busy.join()
                if spent is None:
                    raise SystemExit(f"{name} ended in {scenario}")
                medians.setdefault((name, scenario), []).append(statistics.median(spent) * 1e3)
    for process in children.values():
        process.close()
    return medians


def main() -> int:
    """Measure and print the table."""
    if sys.argv[1:2] == ["--child"]:
        child(Path(sys.argv[2]), sys.argv[3])
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, help="TVM_NUM_THREADS; otherwise the number of cores")
    parser.add_argument("--model", default=ENCODER, help="a model of bench_models.py (default: %(default)s)")
    parser.add_argument("--blocks", type=int, default=9)
    parser.add_argument("--calls", type=int, default=20, help="calls of a block")
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument(
        "--launcher", action="append", default=[], metavar="NAME=FOLDER", help="another version to measure"
    )
    args = parser.parse_args()
    if args.threads:
        os.environ["TVM_NUM_THREADS"] = str(args.threads)
    import _checkout  # noqa: F401
    import numpy as np

    import tvm_stitch  # noqa: F401  (sets TVM_NUM_THREADS for the children)

    threads = os.environ["TVM_NUM_THREADS"]
    others = dict(each.split("=", 1) for each in args.launcher)
    titles = {**{name: f"launcher {name}" for name in others}, **CONTENDERS}
    contenders = [name for name in titles if args.model == ENCODER or name != "onnxruntime"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for native, names in [("", ["launcher", "tvm"]), *((each, [name]) for name, each in others.items())]:
            compiler = multiprocessing.get_context("spawn").Process(
                target=compile_into, args=(folder, args.model, int(threads), native, names)
            )
            compiler.start()
            compiler.join()
            if compiler.exitcode:
                return 1
        spent = measure(folder, contenders, args.scenarios, args.blocks, args.calls)
        results = {contender: np.load(folder / f"{contender}.npy") for contender in contenders}
    print(f"{args.model}, {threads} threads, ms a call (ratio to alone) [least and most of the blocks]")
    rows = []
    for scenario in args.scenarios:
        cells = []
        for contender in contenders:
            blocks = spent.get((contender, scenario), [])
            alone = spent.get((contender, "alone"))
            ratio = (
                f" ({statistics.median(blocks) / statistics.median(alone):.2f})" if blocks and alone else ""
            )
            cells.append(
                f"{statistics.median(blocks):.2f}{ratio} [{min(blocks):.1f}, {max(blocks):.1f}]"
                if blocks
                else ""
            )
        rows.append([SCENARIOS[scenario], *cells])
    print(aligned(["scenario", *(titles[name] for name in contenders)], rows))
    for scenario in args.scenarios:
        if scenario.startswith(("onnxruntime", "pytorch")):
            print(
                f"cores busy in the millisecond before a call, {SCENARIOS[scenario]}: {spent['', scenario][0]:.1f}"
            )
    last = results[contenders[-1]]
    error = max(float(np.abs(result - last).max()) for result in results.values())
    print(f"greatest difference from {titles[contenders[-1]]}: {error:.1e}")
    return 0 if error < 1e-3 * max(1.0, float(np.abs(last).max())) else 1


if __name__ == "__main__":
    raise SystemExit(main())
