# SPDX-License-Identifier: Apache-2.0
"""Run stitched workloads, random graphs and a symbolic encoder layer on a GPU against a float64 reference.

    python scripts/gpu_check.py
    python scripts/gpu_check.py --target llvm --jobs 2
    python scripts/gpu_check.py --random 0 --scales test --sanitizer racecheck

Every function runs on fresh random inputs into memory filled with NaN, and twice: results that differ between
equal runs are a race. The script prints a table last. The exit code is 0 only if everything is right.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _checkout  # noqa: F401  (puts the packages on the path)
import numpy as np
import tvm
from _gpu import need_gpu
from tvm import relax

from stitch_testing.random import graphs as random_graphs
from stitch_testing.random.isolated import Crash, run_isolated
from stitch_testing.reference.bounds import violations
from stitch_testing.reference.relax import evaluate, mismatches
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.testing.workloads import cases, grid_cases
from tvm_stitch.testing.workloads.case import Case

SANITIZERS = ("memcheck", "racecheck", "synccheck", "initcheck")
ENCODER_SIZES = ((1, 1), (1, 7), (2, 16), (3, 31), (4, 64), (2, 128), (8, 37), (1, 512))


@dataclass(frozen=True)
class Task:
    """One check, small enough to send to a worker: its kind, its name or seed, and its scale."""

    kind: str
    name: str
    scale: str = ""
    target: str = "cuda"
    stock: bool = False
    inputs: int = 0  # seed of the random inputs

    @property
    def pipeline(self) -> Any:
        """Stitching, or None for TVM's default."""
        return None if self.stock else random_graphs.stitched_pipeline(self.target)


@dataclass(frozen=True)
class Outcome:
    task: Task
    problems: tuple[str, ...]
    kernels: str = ""
    poisoned: str = ""
    seconds: float = 0.0


class Runner:
    """A compiled module on the device, run into poisoned memory."""

    def __init__(self, mod: tvm.IRModule, task: Task) -> None:
        self.device = tvm.cuda(0) if task.target == "cuda" else tvm.cpu()
        self.target = (
            tvm.target.Target.from_device(self.device) if task.target == "cuda" else tvm.target.Target("llvm")
        )
        executable = tvm.compile(mod, self.target, relax_pipeline=task.pipeline or "default")
        self.main = relax.VirtualMachine(executable, self.device, memory_cfg="pooled")["main"]
        self._poison: set[int] = set()
        self.outputs_poisoned = self.outputs = 0

    def _call(self, inputs: Sequence[np.ndarray]) -> list[Any]:
        result = self.main(*(tvm.runtime.tensor(x, self.device) for x in inputs))
        return [result] if isinstance(result, tvm.runtime.Tensor) else list(result)

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return outputs of a run whose output buffers held NaN (or 0x55 bytes) before.

        TVM's pool reuses freed buffers. So outputs are overwritten and freed, and the run that counts writes into them.
        This is done several times, because the pool has several buffers: the virtual machine keeps its last results,
        and other calls may have left some.
        """
        import torch

        for _ in range(10):
            reports = set()
            for view in map(torch.from_dlpack, self._call(inputs)):
                fill = 0xFF if view.is_floating_point() else 0x01 if view.dtype == torch.bool else 0x55
                view.reshape(-1).view(torch.uint8).fill_(fill)
                reports.add(view.data_ptr())
            del view
            if self.device.dlpack_device_type() == tvm.cuda().dlpack_device_type():
                torch.cuda.synchronize()
            if reports <= self._poison:
                break
            self._poison |= reports
        tensors = self._call(inputs)
        self.device.sync()
        self.outputs += len(tensors)
        self.outputs_poisoned += sum(
            torch.from_dlpack(tensor).data_ptr() in self._poison for tensor in tensors
        )
        return [tensor.numpy() for tensor in tensors]

    def check(
        self,
        draw: Callable[[], list[np.ndarray]],
        judge: Callable[[list[np.ndarray], list[np.ndarray]], list[str]],
    ) -> list[str]:
        """Run twice on one set of fresh inputs. Return the errors, and whether equal runs differ."""
        inputs = draw()
        first = self.run(inputs)
        problems = judge(first, inputs)
        second = self.run(inputs)
        for place, (a, b) in enumerate(zip(first, second, strict=True)):
            if a.tobytes() != b.tobytes():
                problems.append(f"output {place} differs between equal runs")
        return problems


def workloads(scale: str) -> Sequence[Case]:
    """Return the named workloads at one scale. ``"grid"`` means reductions across rows, at sizes for many blocks."""
    return grid_cases.grid_cases("blocks") if scale == "grid" else cases.cases(scale)


def check_case(task: Task) -> Outcome:
    """Check one named workload at one scale."""
    case = next(case for case in workloads(task.scale) if case.name == task.name)
    mod, rng = case.build(), np.random.default_rng(task.inputs)
    runner = Runner(mod, task)
    problems = runner.check(
        lambda: case.inputs(rng), lambda out, ins: mismatches(out, evaluate(mod, ins), case.tolerance)
    )
    counted = count_kernels(mod, runner.target, task.pipeline).memory_intensive
    if counted > case.kernels and not task.stock:
        problems.append(f"{counted} memory-intensive kernels, {case.kernels} expected")
    return _outcome(task, runner, problems, f"{counted}/{case.kernels}")


def check_random(task: Task) -> Outcome:
    """Check one random graph."""
    seed = int(task.name)
    graph = random_graphs.random_graph(seed, 40_000, random_graphs.LEVELS[seed % 3])
    runner = Runner(graph.mod, task)
    rng = np.random.default_rng(task.inputs)
    problems = runner.check(lambda: graph.inputs(rng), lambda out, ins: violations(out, graph.tolerance(ins)))
    return _outcome(task, runner, [*problems, graph.description] if problems else [])


def check_encoder(task: Task) -> Outcome:
    """Check an encoder layer with symbolic batch and sequence: compile once, run at many sizes."""
    from tvm_stitch.testing.workloads.encoder import encoder_layer

    hidden, heads, ffn = 192, 6, 384
    mod, _, _ = encoder_layer(2, 16, hidden, heads, ffn, symbolic=True, masked=True)
    runner = Runner(mod, task)
    rng = np.random.default_rng(task.inputs)
    problems = []
    for batch, sequence in ENCODER_SIZES:

        def draw(batch: int = batch, sequence: int = sequence) -> list[np.ndarray]:
            mask = np.where(rng.random((batch, 1, 1, sequence)) < 0.2, np.float32(-1e4), np.float32(0))
            mask[..., 0] = 0
            return [rng.standard_normal((batch, sequence, hidden), dtype=np.float32), mask]

        outcome = runner.check(
            draw, lambda out, ins: mismatches(out, evaluate(mod, ins), {"float32": (1e-4, 1e-4)})
        )
        problems += [f"batch {batch}, sequence {sequence}: {line}" for line in outcome]
    return _outcome(task, runner, problems)


def _outcome(task: Task, runner: Runner, problems: Sequence[str], kernels: str = "") -> Outcome:
    return Outcome(task, tuple(problems), kernels, f"{runner.outputs_poisoned}/{runner.outputs}")


CHECKS: dict[str, Callable[[Task], Outcome]] = {
    "case": check_case,
    "random": check_random,
    "encoder": check_encoder,
}


def check(task: Task) -> Outcome:
    """Check one task. A failure to compile or run is an outcome too."""
    start = time.perf_counter()
    try:
        done = CHECKS[task.kind](task)
    except Exception as error:
        done = Outcome(task, (random_graphs.describe_error(error),))
    return Outcome(task, done.problems, done.kernels, done.poisoned, time.perf_counter() - start)


def tasks(args: argparse.Namespace) -> list[Task]:
    """Return the tasks of the arguments, in the order of the table."""
    how = {"target": args.target, "stock": args.stock, "inputs": args.inputs}
    tasks_of = [Task("case", case.name, scale, **how) for scale in args.scales for case in workloads(scale)]
    if args.cases:
        tasks_of = [task for task in tasks_of if task.name in args.cases.split(",")]
    else:
        tasks_of.append(Task("encoder", "symbolic", **how))
    return tasks_of + [Task("random", str(args.start + i), **how) for i in range(args.random)]


def table(outcomes: Sequence[Outcome]) -> str:
    """Write a line for every case, one for all random graphs, and the failures."""
    lines = [f"{'check':<40} {'kernels':>8} {'poisoned':>9} {'s':>6}  result"]
    shown = [o for o in outcomes if o.task.kind != "random"]
    for o in shown:
        name = f"{o.task.kind} {o.task.name} {o.task.scale}"
        result = "right" if not o.problems else "WRONG"
        lines.append(f"{name:<40} {o.kernels:>8} {o.poisoned:>9} {o.seconds:6.1f}  {result}")
    graphs = [o for o in outcomes if o.task.kind == "random"]
    if graphs:
        wrong = [o.task.name for o in graphs if o.problems]
        lines.append(f"random graphs: {len(graphs) - len(wrong)} of {len(graphs)} right")
        if wrong:
            lines.append(f"wrong seeds: {' '.join(wrong)}")
    failed = sum(bool(o.problems) for o in outcomes)
    lines.append(
        f"{len(outcomes) - failed} of {len(outcomes)} right" + (f", {failed} WRONG" if failed else "")
    )
    return "\n".join(lines)


def sanitize(tool: str, argv: Sequence[str]) -> int:
    """Run this script again, in one process under compute-sanitizer."""
    program = shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path="/usr/local/cuda/bin"
    )
    if program is None:
        print("compute-sanitizer is not installed", file=sys.stderr)
        return 2
    own = [sys.executable, str(Path(__file__).resolve()), *argv, "--jobs", "0"]
    command = [program, "--tool", tool, "--error-exitcode", "9", "--print-limit", "20", *own]
    print(" ".join(command), flush=True)
    return subprocess.run(command, check=False).returncode


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=["cuda", "llvm"], default="cuda")
    parser.add_argument(
        "--scales", nargs="+", choices=["test", "cpu", "gpu", "grid"], default=["test", "cpu"]
    )
    parser.add_argument(
        "--cases", help="comma-separated names; all by default, and the symbolic encoder layer"
    )
    parser.add_argument("--random", type=int, default=100, help="random graphs to check")
    parser.add_argument("--start", type=int, default=0, help="first seed of the random graphs")
    parser.add_argument(
        "--jobs", type=int, default=8, help="processes, 0 for this one; compiling takes longest"
    )
    parser.add_argument("--inputs", type=int, help="seed of the inputs; a new one each time by default")
    parser.add_argument("--stock", action="store_true", help="TVM's default pipeline instead of stitching")
    parser.add_argument(
        "--sanitizer", choices=SANITIZERS, help="run under compute-sanitizer, small cases only"
    )
    args = parser.parse_args(argv)
    need_gpu(args.target, "--target llvm checks this machine's CPU")
    if args.sanitizer:
        small = [scale for scale in args.scales if scale in ("test", "grid")] or ["test"]
        forwarded = ["--scales", *small, "--random", str(args.random), "--start", str(args.start)]
        forwarded += ["--cases", args.cases] if args.cases else []
        forwarded += ["--inputs", str(args.inputs)] if args.inputs is not None else []
        return sanitize(args.sanitizer, forwarded + (["--stock"] if args.stock else []))
    if args.inputs is None:
        args.inputs = secrets.randbits(32)
    print(f"inputs of seed {args.inputs}", flush=True)
    outcomes = []
    wanted = tasks(args)
    results = map(check, wanted) if args.jobs == 0 else run_isolated(check, wanted, args.jobs, 600, _spoiled)
    for result in results:
        outcome = Outcome(result.item, (result.reason,)) if isinstance(result, Crash) else result
        outcomes.append(outcome)
        for problem in outcome.problems:
            print(f"{outcome.task.kind} {outcome.task.name} {outcome.task.scale}: {problem}", flush=True)
    print(table(outcomes))
    return 1 if any(outcome.problems for outcome in outcomes) else 0


def _spoiled(result: Outcome | Crash[Task]) -> bool:
    """Return whether the process may be unusable: after an illegal access every later CUDA call fails."""
    return isinstance(result, Crash) or bool(result.problems)


if __name__ == "__main__":
    sys.exit(main())
