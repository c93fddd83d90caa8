# SPDX-License-Identifier: Apache-2.0
"""Seeded random memory-intensive Relax graphs, checked against float64 bounds on llvm, on CUDA and emulated.

``python -m stitch_testing.random.graphs --count 3000 --target llvm`` makes a long run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import tvm
from tvm import relax

from tvm_stitch.config import StitchConfig

from ..reference.bounds import Bound, evaluate_bounds
from .checks import (
    CheckResult,
    Job,
    Outcome,
    checked,
    describe_error,
    jobs_of,
    long_run,
    outcome,
    parser,
    untrusted,
)
from .growth import LEVELS, Graph, Level, grow
from .isolated import Crash, run_isolated
from .relax_front_end import RelaxFrontEnd
from .relax_steps import RELAX_STEPS

__all__ = ["CHECKS", "LEVELS", "CheckResult", "Level", "RandomGraph", "describe_error", "random_graph"]

Pipeline = Callable[[tvm.IRModule], tvm.IRModule]


class RandomGraph(Graph):
    """A generated Relax graph."""

    def tolerance(self, inputs: Sequence[np.ndarray], half_arithmetic: bool = True) -> list[Bound]:
        return evaluate_bounds(self.mod, inputs, half_arithmetic=half_arithmetic)


def random_graph(
    seed: int, max_elements: int = 40_000, level: Level = "grid", more: bool = False
) -> RandomGraph:
    """Grow a graph of 3 to some 45 memory-intensive operators. Equal arguments give equal graphs.

    ``max_elements``, ``level`` and errors are those of :func:`~.growth.grow`. ``more`` adds the operators of
    :mod:`.relax_steps`, which TVM alone need not compile.
    """
    return grow(RandomGraph, seed, RelaxFrontEnd(), max_elements, level, RELAX_STEPS if more else ())


def cut(graph: RandomGraph, bindings: int) -> RandomGraph:
    """Return the graph of the first ``bindings`` bindings. It returns the last one and keeps only its operands."""
    main = graph.mod["main"]
    kept = list(main.body.blocks[0].bindings)[:bindings]
    result = relax.Var("result", kept[-1].var.ty)
    block = relax.DataflowBlock([*kept, relax.VarBinding(result, kept[-1].var)])
    function = relax.Function(main.params, relax.SeqExpr([block], result), result.ty)
    mod = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    return replace(graph, mod=relax.transform.DeadCodeElimination()(mod), outputs=1)


def _on_device(
    mod: tvm.IRModule, target: tvm.target.Target, device: tvm.runtime.Device, pipeline: Pipeline | None
) -> Callable[[list[np.ndarray]], tuple[list[np.ndarray], None, list[str]]]:
    def run(inputs: list[np.ndarray]) -> tuple[list[np.ndarray], None, list[str]]:
        executable = tvm.compile(mod, target, relax_pipeline=pipeline or "default")
        vm = relax.VirtualMachine(executable, device)
        result = vm["main"](*(tvm.runtime.tensor(x, device) for x in inputs))
        tensors = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
        return [tensor.numpy() for tensor in tensors], None, []

    return run


def check_graph_llvm(graph: RandomGraph, pipeline: Pipeline | None = None) -> CheckResult[RandomGraph]:
    """Compile for llvm with ``pipeline`` (TVM's default if None), run, and compare."""
    run = _on_device(graph.mod, tvm.target.Target("llvm"), tvm.cpu(), pipeline)
    return checked(graph, True, run)


def check_graph_cuda(graph: RandomGraph, pipeline: Pipeline | None = None) -> CheckResult[RandomGraph]:
    """Compile for the first CUDA device with ``pipeline``, run there, and compare."""
    target = tvm.target.Target.from_device(tvm.cuda(0))
    return checked(graph, True, _on_device(graph.mod, target, tvm.cuda(0), pipeline))


def emulated_target() -> tvm.target.Target:
    """Return the target of emulated kernels: an H100."""
    return tvm.target.Target("nvidia/nvidia-h100", host="llvm")


def check_graph_cuda_emulated(
    graph: RandomGraph, pipeline: Pipeline | None = None
) -> CheckResult[RandomGraph]:
    """Compile for CUDA with ``pipeline``, run in the emulator, and compare. Its reports count as problems."""
    from cuda_emulator import run_cuda

    def run(inputs: list[np.ndarray]) -> tuple[list[np.ndarray], int, list[str]]:
        # The graph's seed also picks the order in which blocks and threads run.
        done = run_cuda(graph.mod, inputs, target=emulated_target(), relax_pipeline=pipeline, seed=graph.seed)
        return list(done.outputs), len(done.launches), [str(report) for report in done.reports]

    return checked(graph, True, run)


CHECKS: dict[str, Callable[[RandomGraph, Pipeline | None], CheckResult[RandomGraph]]] = {
    "llvm": check_graph_llvm,
    "cuda": check_graph_cuda,
    "emulated-cuda": check_graph_cuda_emulated,
}


def stitched_pipeline(target: str, config: StitchConfig | None = None) -> Pipeline:
    """Return the stitching pipeline for ``"llvm"``, ``"cuda"`` (this machine's device) or ``"emulated-cuda"``."""
    import tvm_stitch.relax

    pipelines = {
        "llvm": lambda: tvm.target.Target("llvm"),
        "cuda": lambda: tvm.target.Target.from_device(tvm.cuda(0)),
        "emulated-cuda": emulated_target,
    }
    return tvm_stitch.relax.pipeline(pipelines[target](), config)


@dataclass(frozen=True)
class _Job(Job):
    """A graph, or only its first ``bindings``, with ``more`` operators than stock TVM compiles or without."""

    bindings: int | None = None
    more: bool = False


def _work(job: _Job) -> Outcome:
    """Check one graph, and return (the reason of a failure or None, the text to print)."""
    graph = random_graph(job.seed, job.max_elements, job.level, job.more)
    graph = graph if job.bindings is None else cut(graph, job.bindings)
    pipeline = None if job.stock else stitched_pipeline(job.target, job.config)
    return outcome(job, CHECKS[job.target](graph, pipeline), graph.mod.script)


def _reduce(job: _Job, timeout: float) -> str:
    """Return the shortest prefix of a failing graph that fails as well, as text."""
    graph = random_graph(job.seed, job.max_elements, job.level, job.more)
    last = len(graph.mod["main"].body.blocks[0].bindings)
    jobs = [replace(job, bindings=bindings) for bindings in range(1, last + 1)]
    for attempt, result in zip(jobs, run_isolated(_work, jobs, 1, timeout, untrusted), strict=False):
        why = result.reason if isinstance(result, Crash) else result[0]
        if why is not None:
            return f"seed {job.seed} reduced: {why}\n{cut(graph, attempt.bindings or last).mod.script()}"
    return f"seed {job.seed}: only the whole graph fails"


def main(argv: Sequence[str] | None = None) -> int:
    """Check many graphs, and print the failures and a summary. The exit code is 1 if any failed."""
    options = parser("random_graphs", list(CHECKS), main.__doc__)
    options.add_argument(
        "--reduce", action="store_true", help="print the shortest prefix of failing graphs that fails"
    )
    options.add_argument(
        "--more", action="store_true", help="also the operators of relax_steps.py, some of which TVM lacks"
    )
    args = options.parse_args(argv)
    jobs = jobs_of(_Job, args, StitchConfig(multiprocessors=args.multiprocessors))
    jobs = [replace(job, more=args.more) for job in jobs]
    failed = long_run(_work, jobs, args.jobs, args.timeout, args.target)
    for job in jobs if args.reduce else []:
        if job.seed in failed:
            print(_reduce(replace(job, show=False), args.timeout), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
