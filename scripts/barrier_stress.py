# SPDX-License-Identifier: Apache-2.0
"""Launch kernels with barriers thousands of times in a row: none may hang, every result must be equal and right.

    python scripts/barrier_stress.py
    python scripts/barrier_stress.py --cases chained layer_norm_backward --scale test --launches 2000
    python scripts/barrier_stress.py --cuda-graph        # as captured by RewriteCUDAGraph, against the same without
    python scripts/barrier_stress.py --emulate --launches 8     # no GPU: every launch in another order of threads

Each case runs alone, then while two other streams are kept busy. Each run has its own process, which is killed if it
gives no answer in time. The first result is compared with float64, all others with the first one, bit for bit.
``chained`` is a hand-written kernel of two chained full reductions. ``decoder`` is a step of two layers for one token,
``tokens`` one for four, and ``packed`` one by 4-bit weights. Other names are those of workloads. It prints a table.
The exit code is 0 only if nothing hung and everything was right.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import _checkout  # noqa: F401  (puts the packages on the path)
import numpy as np
import tvm
from _gpu import need_gpu
from models.decoder_step import Decoder, as_relax, drawn, in_torch
from tvm import relax

from stitch_testing.barrier_kernels import chained_reductions, chained_reductions_reference
from stitch_testing.random import graphs as random_graphs
from stitch_testing.random.isolated import Crash, run_isolated
from stitch_testing.reference.relax import evaluate, mismatches
from tvm_stitch.testing.workloads import cases, grid_cases
from tvm_stitch.testing.workloads.case import DEFAULT_TOLERANCE, Case

MODES = ("alone", "busy", "graph")
DECODERS: dict[str, dict[str, Any]] = {"decoder": {}, "tokens": {"tokens": 4}, "packed": {"bits": 4}}
"""Cases of a decoder's step, and how it differs from one of one token by weights of the activations' type."""
_CHAIN = 4  # consecutive calls of the hand-written kernel: the inner ones can be captured


@dataclass(frozen=True)
class Task:
    """One line of the table. ``target`` is "cuda", "llvm" (the machinery without a GPU) or "emulator"."""

    name: str
    scale: str = "test"
    mode: str = "alone"
    target: str = "cuda"
    launches: int = 10_000
    batch: int = 50
    inputs: int = 0  # seed of the inputs


@dataclass(frozen=True)
class Outcome:
    task: Task
    problems: tuple[str, ...]
    calls: int = 0
    wrong: int = 0  # calls whose result differs from the first
    kernels: int | None = None  # of one call, if the device reports it
    seconds: float = 0.0
    beside: int = 0  # kernels of the other streams during the test


@dataclass(frozen=True)
class Subject:
    """A Relax module to launch, its inputs, and its expected outputs."""

    mod: tvm.IRModule
    inputs: list[np.ndarray]
    reference: Callable[[], list[np.ndarray]]
    tolerance: Mapping[str, tuple[float, float]] = field(default_factory=lambda: DEFAULT_TOLERANCE)
    stitched: bool = True


def workloads(scale: str) -> dict[str, Case]:
    """Return all workloads of a scale by name. A second one of the same name is called name.2, and so on."""
    known: dict[str, Case] = {}
    named = cases.cases(scale) + (grid_cases.grid_cases(scale) if scale != "cpu" else [])
    for case in named:
        same = sum(name.split(".")[0] == case.name for name in known)
        known[case.name if not same else f"{case.name}.{same + 1}"] = case
    return known


def subject(task: Task) -> Subject:
    """Return the workload that a task names. A KeyError lists the names if there is none."""
    rng = np.random.default_rng(task.inputs)
    if task.name == "chained":
        blocks, threads, elements = (132, 512, 1_000_003) if task.target == "cuda" else (3, 64, 1003)
        x = rng.standard_normal(elements, dtype=np.float32) + np.float32(1)
        return Subject(
            chained_reductions(blocks, threads, elements, _CHAIN),
            [x],
            lambda: [chained_reductions_reference(x, _CHAIN)],
            {"float32": (1e-4, 1e-4)},
            stitched=False,
        )
    if task.name in DECODERS:
        return _decoder(DECODERS[task.name], task, rng)
    known = workloads(task.scale)
    if task.name not in known:
        names = ", ".join(["chained", *DECODERS, *known])
        raise KeyError(f"no case {task.name!r} at scale {task.scale!r}: {names}")
    case = known[task.name]
    mod, inputs = case.build(), case.inputs(rng)
    return Subject(mod, inputs, lambda: evaluate(mod, inputs), case.tolerance)


def _decoder(of_case: dict[str, Any], task: Task, rng: np.random.Generator) -> Subject:
    """Return a step of a Llama-like decoder, small if it does not run on a GPU."""
    import torch

    wide = (
        {"hidden": 2048}
        if task.target == "cuda"
        else {"hidden": 256, "inner": 512, "cache": 64, "words": 320}
    )
    heads = {"heads": 32, "key_heads": 8} if task.target == "cuda" else {"heads": 4, "key_heads": 2}
    decoder = Decoder(layers=2, dtype="float16", **of_case, **wide, **heads)
    inputs = drawn(decoder, rng)

    def reference() -> list[np.ndarray]:
        params = [torch.from_numpy((x.view(np.int32) if x.dtype == np.uint32 else x).copy()) for x in inputs]
        wider = [p.float() if p.dtype.is_floating_point else p for p in params]
        scores = in_torch(decoder)(*wider)
        caches = [
            wider[i]
            for i, (name, _, _) in enumerate(decoder.parameters())
            if name.startswith(("keys", "values"))
        ]
        return [scores.numpy(), *(cache.half().numpy() for cache in caches)]

    return Subject(as_relax(decoder), inputs, reference, {"float32": (0.0, 0.05), "float16": (0.0, 0.05)})


def compiled(what: Subject, target: str, cuda_graph: bool = False) -> Any:
    """Return the executable for the device of ``target``."""
    pipeline = random_graphs.stitched_pipeline(target) if what.stitched else "default"
    chosen = tvm.target.Target.from_device(tvm.cuda(0)) if target == "cuda" else tvm.target.Target(target)
    with tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": cuda_graph}):
        return tvm.compile(what.mod, chosen, relax_pipeline=pipeline)


def captures(executable: Any) -> bool:
    """Return whether an executable replays CUDA graphs."""
    return "cuda_graph.run_or_capture" in executable.as_text()


class Program:
    """A compiled module on its device, called on the same inputs again and again."""

    def __init__(self, executable: Any, what: Subject, target: str) -> None:
        self.device = tvm.cuda(0) if target == "cuda" else tvm.cpu()
        self._main = relax.VirtualMachine(executable, self.device, memory_cfg="pooled")["main"]
        self._inputs = [tvm.runtime.tensor(x, self.device) for x in what.inputs]

    def __call__(self) -> list[Any]:
        result = self._main(*self._inputs)
        return [result] if isinstance(result, tvm.runtime.Tensor) else list(result)

    def host(self) -> list[np.ndarray]:
        """Return the outputs of one call, on the host."""
        return [tensor.numpy() for tensor in self()]


def differing(program: Program, first: Sequence[np.ndarray], calls: int, batch: int) -> int:
    """Count the calls whose result differs from ``first``, bit for bit.

    Calls follow each other in batches without a pause. All results of a batch are then compared on the device.
    """
    import torch

    device = "cuda" if program.device.dlpack_device_type() == tvm.cuda().dlpack_device_type() else "cpu"
    wanted = [torch.from_numpy(_bytes(array).copy()).to(device) for array in first]
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    done = 0
    while done < calls:
        count = min(batch, calls - done)
        for outputs in [program() for _ in range(count)]:
            flat = [torch.from_dlpack(tensor).reshape(-1).view(torch.uint8) for tensor in outputs]
            unequal = [(a != b).any() for a, b in zip(flat, wanted, strict=True) if a.numel()]
            if unequal:
                wrong += torch.stack(unequal).any()
        program.device.sync()
        done += count
    return int(wrong)


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


class Load:
    """Two CUDA streams that always have work waiting: matrix products on one, element-wise kernels on the other."""

    def __init__(self, waiting: int = 8) -> None:
        self.kernels = 0
        self.error: Exception | None = None
        self._waiting = waiting
        self._stop = threading.Event()
        self._started = threading.Event()

    @contextmanager
    def running(self) -> Iterator[Load]:
        """Keep the streams busy until the context is left. Raises any error of theirs."""
        thread = threading.Thread(target=self._feed, daemon=True)
        thread.start()
        self._started.wait(60)
        try:
            yield self
        finally:
            self._stop.set()
            thread.join()
        if self.error is not None:
            raise self.error

    def _feed(self) -> None:
        import torch

        try:
            a = torch.randn(2048, 2048, device="cuda")
            b = torch.randn(1 << 24, device="cuda")
            torch.cuda.synchronize()
            jobs: list[Callable[[], Any]] = [lambda: a @ a, lambda: torch.sin(b)]
            streams = [torch.cuda.Stream() for _ in jobs]
            queues: list[deque[Any]] = [deque() for _ in jobs]
            while not self._stop.is_set():
                for job, stream, queue in zip(jobs, streams, queues, strict=True):
                    with torch.cuda.stream(stream):
                        job()
                        self.kernels += 1
                        queue.append(torch.cuda.Event())
                        queue[-1].record(stream)
                    if len(queue) > self._waiting:
                        queue.popleft().synchronize()
                self._started.set()
            for stream in streams:
                stream.synchronize()
        except Exception as error:
            self.error = error
            self._started.set()


def kernel_names(program: Program) -> tuple[str, ...] | None:
    """Return the kernels of one call on the GPU, in order. None if CUPTI sees none."""
    from _measure import _device_activity

    program()
    program.device.sync()
    names = [name for name, _ in _device_activity(program, 1) if not name.startswith(("Memcpy", "Memset"))]
    return tuple(names) or None


def on_device(task: Task) -> Outcome:
    """Runs a task on the GPU, or on the CPU through the same code."""
    what = subject(task)
    plain = Program(compiled(what, task.target), what, task.target)
    first = plain.host()
    problems = mismatches(first, what.reference(), what.tolerance)
    program = plain
    names = kernel_names(plain) if task.target == "cuda" else None
    if task.mode == "graph":
        executable = compiled(what, task.target, cuda_graph=True)
        if not captures(executable):
            problems.append("nothing was captured: no call lies between others that can be replayed")
        program = Program(executable, what, task.target)
        # The first call captures, later ones replay: both are compared.
        replayed = kernel_names(program) if task.target == "cuda" else None
        if sorted(replayed or ()) != sorted(names or ()):
            problems.append(f"{len(replayed or ())} kernels with a CUDA graph, {len(names or ())} without")
    load = Load()
    start = time.perf_counter()
    with load.running() if task.mode == "busy" else nullcontext():
        wrong = differing(program, first, task.launches, task.batch)
        seconds = time.perf_counter() - start
    if wrong:
        problems.append(f"{wrong} of {task.launches} results differ from the first")
    return Outcome(
        task,
        tuple(problems),
        task.launches,
        wrong,
        len(names) if names else None,
        seconds,
        load.kernels,
    )


def in_emulator(task: Task) -> Outcome:
    """Runs a task in the emulator: each call under another order of blocks, warps and lanes."""
    from cuda_emulator import default_target, lower, run_lowered

    what, start = subject(task), time.perf_counter()
    pipeline = random_graphs.stitched_pipeline("emulated-cuda") if what.stitched else None
    lowered = lower(what.mod, default_target(), pipeline)
    first: list[np.ndarray] = []
    problems: list[str] = []
    wrong = kernels = 0
    for seed in range(task.launches):
        run = run_lowered(lowered, what.inputs, seed=seed)
        kernels = len(run.launches)
        seen = {(report.kind, report.array): report for report in reversed(run.reports)}
        problems += [f"seed {seed}: {report}" for report in seen.values()]
        if not run.outputs:
            wrong += 1
            continue
        if not first:
            first = run.outputs
            problems += mismatches(first, what.reference(), what.tolerance)
        equal = all(np.array_equal(_bytes(a), _bytes(b)) for a, b in zip(run.outputs, first, strict=True))
        wrong += not equal
    if wrong:
        problems.append(f"{wrong} of {task.launches} results are missing or differ from the first")
    return Outcome(task, tuple(problems), task.launches, wrong, kernels, time.perf_counter() - start)


def stress(task: Task) -> Outcome:
    """Run one task. A failure to compile or run is an outcome too."""
    try:
        return in_emulator(task) if task.target == "emulator" else on_device(task)
    except Exception as error:
        return Outcome(task, (random_graphs.describe_error(error),))


def run_all(
    tasks: Sequence[Task], seconds: float, function: Callable[[Task], Outcome] = stress
) -> Iterator[Outcome]:
    """Return the outcomes in order. Each has its own process, which is killed if it gives no answer in time."""
    for task in tasks:
        (result,) = run_isolated(function, [task], timeout=seconds)
        yield Outcome(task, (result.reason,)) if isinstance(result, Crash) else result


def tasks(args: argparse.Namespace) -> list[Task]:
    """Return the tasks of the arguments, in the order of the table."""
    modes = ["graph"] if args.cuda_graph else args.modes
    target = "emulator" if args.emulate else args.target
    if target != "cuda":
        modes = [mode for mode in modes if mode == "alone"]  # other streams and graphs need a GPU
    return [
        Task(name, args.scale, mode, target, args.launches, args.batch, args.inputs)
        for name in args.cases
        for mode in modes
    ]


def table(outcomes: Sequence[Outcome]) -> str:
    """Write a line for every case and mode."""
    lines = [
        f"{'case':<28} {'mode':<6} {'calls':>7} {'kernels':>8} {'us/call':>9} {'beside':>8} {'wrong':>6}  result"
    ]
    for o in outcomes:
        kernels = "" if o.kernels is None else str(o.kernels)
        each = f"{1e6 * o.seconds / o.calls:.1f}" if o.calls else ""
        lines.append(
            f"{o.task.name:<28} {o.task.mode:<6} {o.calls:>7} {kernels:>8} {each:>9} {o.beside or '':>8} "
            f"{o.wrong:>6}  {'FAILED' if o.problems else 'right'}"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", default=["chained"], help="chained, or names of workloads")
    parser.add_argument("--scale", choices=["test", "cpu", "gpu"], default="test", help="of the workloads")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["alone", "busy"])
    parser.add_argument("--cuda-graph", action="store_true", help="the mode graph, and no other")
    parser.add_argument("--launches", type=int, default=10_000, help="calls of each case")
    parser.add_argument("--batch", type=int, default=50, help="calls between two comparisons")
    parser.add_argument("--inputs", type=int, default=0, help="seed of the inputs")
    parser.add_argument(
        "--timeout", type=float, default=600, help="seconds after which a case counts as hung"
    )
    parser.add_argument("--target", choices=["cuda", "llvm"], default="cuda")
    parser.add_argument("--emulate", action="store_true", help="in the emulator, each call in another order")
    args = parser.parse_args(argv)
    if not args.emulate:
        need_gpu(args.target, "--emulate runs the kernels on the CPU")
    outcomes = []
    for outcome in run_all(tasks(args), args.timeout):
        outcomes.append(outcome)
        for problem in outcome.problems:
            print(f"{outcome.task.name} {outcome.task.mode}: {problem}", flush=True)
    print(table(outcomes))
    return 1 if any(outcome.problems for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
