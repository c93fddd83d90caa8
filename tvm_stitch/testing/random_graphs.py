# SPDX-License-Identifier: Apache-2.0
"""Seeded random memory-intensive Relax graphs, checked against float64 bounds on llvm, on CUDA and emulated.

``python -m tvm_stitch.testing.random_graphs --count 3000 --target llvm`` makes a long run.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import ml_dtypes  # noqa: F401  (gives NumPy the name "bfloat16")
import numpy as np
import tvm
from tvm import relax

from .bounds import Bound, evaluate_bounds, violations
from .isolated import Crash, run_isolated
from .random_grid_steps import GRID_STEPS, random_matrix
from .random_steps import FLOATS, Node, Sketch, Step, column_reduce, random_shape, row_reduce, steps

Pipeline = Callable[[tvm.IRModule], tvm.IRModule]

Level = Literal["row", "column", "grid"]
"""What a graph reduces over: ``"row"``: the innermost axes. ``"column"``: any. ``"grid"``: any, with row and column
reductions of the same data, chains of them, reduced values read along other axes, and unconnected parts."""

LEVELS: tuple[Level, ...] = get_args(Level)


@dataclass(frozen=True)
class RandomGraph:
    """A generated graph: ``mod["main"]`` takes tensors of ``arguments`` ((shape, dtype) each)."""

    seed: int
    mod: tvm.IRModule
    arguments: tuple[tuple[tuple[int, ...], str], ...]
    operators: tuple[str, ...]
    outputs: int

    @property
    def description(self) -> str:
        """One line: seed, arguments, and how often each operator occurs."""
        arguments = ", ".join(f"{dtype}{list(shape)}" for shape, dtype in self.arguments)
        counts = Counter(self.operators)
        operators = " ".join(f"{name}*{n}" if n > 1 else name for name, n in counts.items())
        return f"seed {self.seed}: ({arguments}) -> {self.outputs} outputs: {operators}"

    def inputs(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Fresh random inputs: floats in [-2, 2], integers in [-9, 9]."""
        return [_draw(rng, shape, dtype) for shape, dtype in self.arguments]

    def tolerance(self, inputs: Sequence[np.ndarray], half_arithmetic: bool = True) -> list[Bound]:
        """For every output the float64 reference and the least and greatest values allowed.

        ``half_arithmetic`` allows for sums of half types accumulated in those types.
        """
        return evaluate_bounds(self.mod, inputs, half_arithmetic=half_arithmetic)


@dataclass
class CheckResult:
    """What came of running one graph."""

    graph: RandomGraph
    problems: list[str] = field(default_factory=list)
    error: str | None = None
    traceback: str | None = None
    launches: int | None = None
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return self.error is None and not self.problems

    def __str__(self) -> str:
        return "\n  ".join([self.graph.description, *self.problems, *([self.error] if self.error else [])])


def describe_error(error: Exception) -> str:
    """One line on what went wrong: TVM's messages put native stacks, sources and warnings around it."""
    lines = [line.strip() for line in str(error).replace("\0", "").splitlines() if line.strip()]
    told = [line for line in lines if "error:" in line.lower()] or lines[-1:]
    return f"{type(error).__name__}: {told[0] if told else 'no message'}"


def _draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if dtype == "int32":
        return rng.integers(-9, 10, shape, dtype=np.int32)
    return rng.uniform(-2.0, 2.0, shape).astype(np.dtype(dtype))


def _arguments(
    rng: np.random.Generator, base: tuple[int, ...], dtype: str
) -> list[tuple[tuple[int, ...], str]]:
    """One tensor of ``base`` and up to three more that go with it."""
    arguments = [(base, dtype)]
    for _ in range(int(rng.integers(0, 4))):
        shape = base
        if rng.random() < 0.5:  # something to broadcast: a vector, a column, one scale a channel
            shape = tuple(1 if rng.random() < 0.4 else dim for dim in base)[int(rng.integers(0, len(base))) :]
        other = dtype if rng.random() < 0.8 else str(rng.choice(["bool", "int32", "float32"]))
        arguments.append((shape, other))
    return arguments


def _grow(sketch: Sketch, options: Sequence[tuple[float, Step]], wanted: int) -> None:
    """Add about ``wanted`` operators."""
    frequencies = np.array([frequency for frequency, _ in options])
    tries, start = 0, len(sketch.operators)
    while (have := len(sketch.operators) - start) < wanted and (tries < 8 * wanted or have < 3):
        tries += 1
        options[int(sketch.rng.choice(len(options), p=frequencies / frequencies.sum()))][1](sketch)


#: What each level adds to a graph, and how often.
_STEPS: dict[Level, tuple[tuple[float, Step], ...]] = {
    "row": steps(row_reduce),
    "column": steps(column_reduce),
    "grid": GRID_STEPS,
}


def random_graph(seed: int, max_elements: int = 40_000, level: Level = "grid") -> RandomGraph:
    """A graph of 3 to some 45 memory-intensive operators; equal arguments give equal graphs.

    Parameters
    ----------
    max_elements : the most elements that any value may have.
    level : what is reduced, and how the results are read; see :data:`Level`.

    Raises
    ------
    ValueError : unknown level.
    """
    if level not in LEVELS:
        raise ValueError(f"unknown level {level!r}: choose from {', '.join(LEVELS)}")
    rng = np.random.default_rng([seed, max_elements, LEVELS.index(level)])
    builder = relax.BlockBuilder()
    dtype = str(rng.choice([*FLOATS, "int32"], p=[0.6, 0.16, 0.16, 0.08]))
    parts = 1
    if level == "grid":
        parts = 2 if rng.random() < 0.25 else 1
    groups = []
    for _ in range(parts):
        matrix = level == "grid" and rng.random() < 0.7
        base = random_matrix(rng, max_elements) if matrix else random_shape(rng, max_elements)
        groups.append(_arguments(rng, base, dtype))
    arguments = [argument for group in groups for argument in group]
    params = [
        relax.Var(f"x{place}", relax.TensorType(shape, dtype))
        for place, (shape, dtype) in enumerate(arguments)
    ]
    sketch = Sketch(rng, builder, max_elements)
    wanted = int(rng.integers(3, 41))
    made: list[Node] = []
    with builder.function("main", params):
        with builder.dataflow():
            waiting = iter(params)
            for group in groups:
                sketch.nodes = []  # parts do not see each other
                for (shape, dtype), param in zip(group, waiting):
                    sketch.add_input(param, _draw(rng, shape, dtype))
                _grow(sketch, _STEPS[level], max(3, wanted // parts))
                made += sketch.nodes[len(group) :]
            results = [node for node in made if not node.used]
            interior = [node for node in made if node.used]
            if interior and rng.random() < 0.3:
                results.append(interior[int(rng.integers(len(interior)))])
            outputs = [builder.emit_output(node.var) for node in results]
        builder.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
    return RandomGraph(seed, builder.get(), tuple(arguments), tuple(sketch.operators), len(outputs))


def cut(graph: RandomGraph, bindings: int) -> RandomGraph:
    """The graph up to its first ``bindings`` bindings, returning the last and holding only what that needs."""
    main = graph.mod["main"]
    kept = list(main.body.blocks[0].bindings)[:bindings]
    result = relax.Var("result", kept[-1].var.ty)
    block = relax.DataflowBlock([*kept, relax.VarBinding(result, kept[-1].var)])
    function = relax.Function(main.params, relax.SeqExpr([block], result), result.ty)
    mod = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    return replace(graph, mod=relax.transform.DeadCodeElimination()(mod), outputs=1)


def _checked(
    graph: RandomGraph, half_arithmetic: bool, run: Callable[[list[np.ndarray]], Any]
) -> CheckResult:
    """Run on inputs of the graph's seed; ``run`` returns (outputs, launches or None, further problems)."""
    result = CheckResult(graph)
    start = time.perf_counter()
    try:
        inputs = graph.inputs(np.random.default_rng([graph.seed, 1]))
        outputs, result.launches, result.problems = run([x.copy() for x in inputs])
        result.problems = [*result.problems, *violations(outputs, graph.tolerance(inputs, half_arithmetic))]
    except Exception as error:  # a compiler's failure is a finding, and a long run goes on after it
        result.error = describe_error(error)
        result.traceback = traceback.format_exc()
    result.seconds = time.perf_counter() - start
    return result


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


def check_graph_llvm(graph: RandomGraph, pipeline: Pipeline | None = None) -> CheckResult:
    """Compile for llvm with ``pipeline`` (TVM's default if None), run, and compare."""
    run = _on_device(graph.mod, tvm.target.Target("llvm"), tvm.cpu(), pipeline)
    return _checked(graph, True, run)


def check_graph_cuda(graph: RandomGraph, pipeline: Pipeline | None = None) -> CheckResult:
    """Compile for the first CUDA device with ``pipeline``, run there, and compare."""
    target = tvm.target.Target.from_device(tvm.cuda(0))
    return _checked(graph, True, _on_device(graph.mod, target, tvm.cuda(0), pipeline))


def emulated_target() -> tvm.target.Target:
    """What emulated kernels are compiled for: an H100."""
    return tvm.target.Target("nvidia/nvidia-h100", host="llvm")


def check_graph_cuda_emulated(graph: RandomGraph, pipeline: Pipeline | None = None) -> CheckResult:
    """Compile for CUDA with ``pipeline``, run in the emulator, and compare; its reports count as problems."""
    from .emulator import run_cuda

    def run(inputs: list[np.ndarray]) -> tuple[list[np.ndarray], int, list[str]]:
        # The graph's seed also picks the order in which blocks and threads run.
        done = run_cuda(graph.mod, inputs, target=emulated_target(), relax_pipeline=pipeline, seed=graph.seed)
        return list(done.outputs), len(done.launches), [str(report) for report in done.reports]

    return _checked(graph, True, run)


CHECKS: dict[str, Callable[[RandomGraph, Pipeline | None], CheckResult]] = {
    "llvm": check_graph_llvm,
    "cuda": check_graph_cuda,
    "emulated-cuda": check_graph_cuda_emulated,
}


def stitched_pipeline(target: str) -> Pipeline:
    """The stitching pipeline for ``"llvm"``, ``"cuda"`` (the device present) or ``"emulated-cuda"``."""
    import tvm_stitch.relax

    made = {
        "llvm": lambda: tvm.target.Target("llvm"),
        "cuda": lambda: tvm.target.Target.from_device(tvm.cuda(0)),
        "emulated-cuda": emulated_target,
    }
    return tvm_stitch.relax.pipeline(made[target]())


@dataclass(frozen=True)
class _Job:
    """One graph of a long run, as sent to the process that checks it."""

    seed: int
    target: str
    max_elements: int
    level: Level
    stock: bool
    show: bool
    bindings: int | None = None


def _work(job: _Job) -> tuple[str | None, str]:
    """(why it failed, or None; what to print) for one graph."""
    graph = random_graph(job.seed, job.max_elements, job.level)
    graph = graph if job.bindings is None else cut(graph, job.bindings)
    pipeline = None if job.stock else stitched_pipeline(job.target)
    result = CHECKS[job.target](graph, pipeline)
    if result.ok:
        return None, ""
    shown = f"FAIL {result}"
    if job.show:
        shown = "\n".join([shown, graph.mod.script(), result.traceback or ""])
    return result.error or "out of bounds", shown


def _reduce(job: _Job, timeout: float) -> str:
    """The shortest beginning of a failing graph that fails as well, as text."""
    graph = random_graph(job.seed, job.max_elements, job.level)
    last = len(graph.mod["main"].body.blocks[0].bindings)
    jobs = [replace(job, bindings=bindings) for bindings in range(1, last + 1)]
    for attempt, result in zip(jobs, run_isolated(_work, jobs, 1, timeout, _untrusted), strict=False):
        why = result.reason if isinstance(result, Crash) else result[0]
        if why is not None:
            return f"seed {job.seed} reduced: {why}\n{cut(graph, attempt.bindings or last).mod.script()}"
    return f"seed {job.seed}: only the whole graph fails"


def main(argv: Sequence[str] | None = None) -> int:
    """Check many graphs, print the failures and a summary; the exit code is 1 if any failed."""
    parser = argparse.ArgumentParser(prog="random_graphs", description=main.__doc__)
    parser.add_argument("--count", type=int, default=300, help="graphs to check")
    parser.add_argument("--start", type=int, default=0, help="first seed")
    parser.add_argument("--target", choices=sorted(CHECKS), default="llvm")
    parser.add_argument("--max-elements", type=int, default=40_000, help="elements of the largest value")
    parser.add_argument(
        "--level",
        choices=LEVELS,
        default="grid",
        help="what is reduced: innermost axes, any, any and crossed",
    )
    parser.add_argument("--stock", action="store_true", help="TVM's default pipeline instead of stitching")
    parser.add_argument("--show", action="store_true", help="print module and traceback of every failure")
    parser.add_argument(
        "--reduce", action="store_true", help="print the least part of failing graphs that fails"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--timeout", type=float, default=300, help="seconds that one graph may take")
    args = parser.parse_args(argv)
    jobs = [
        _Job(seed, args.target, args.max_elements, args.level, args.stock, args.show)
        for seed in range(args.start, args.start + args.count)
    ]
    failed: dict[int, str] = {}
    start = time.perf_counter()
    for done, result in enumerate(run_isolated(_work, jobs, args.jobs, args.timeout, _untrusted), start=1):
        why: str | None
        if isinstance(result, Crash):
            why, shown = result.reason, f"FAIL seed {result.item.seed}: {result.reason}"
        else:
            why, shown = result
        if why is not None:
            failed[jobs[done - 1].seed] = why
            print(shown, flush=True)
        if done % 100 == 0:
            print(f"{done} graphs, {len(failed)} failed, {time.perf_counter() - start:.0f} s", flush=True)
    print(f"{args.count} graphs on {args.target}: {args.count - len(failed)} right, {len(failed)} failed")
    if failed:
        print("failed seeds:", " ".join(map(str, failed)))
        for kind, count in Counter(re.sub(r"\d+", "#", why) for why in failed.values()).most_common():
            print(f"{count} times: {kind[:300]}")
    for job in jobs if args.reduce else []:
        if job.seed in failed:
            print(_reduce(replace(job, show=False), args.timeout), flush=True)
    return 1 if failed else 0


def _untrusted(result: tuple[str | None, str] | Crash[_Job]) -> bool:
    """Whether a process may be spoiled for the next graph: a GPU fault, or memory written out of bounds."""
    return isinstance(result, Crash) or result[0] is not None


if __name__ == "__main__":
    sys.exit(main())
