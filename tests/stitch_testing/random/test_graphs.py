# SPDX-License-Identifier: Apache-2.0
"""Random memory-intensive graphs: the generator, and stitched results on llvm and emulated CUDA."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from stitch_testing.more_than_stock import more_than_stock
from stitch_testing.random import checks
from stitch_testing.random import graphs as random_graphs
from stitch_testing.random.graphs import LEVELS, RandomGraph, random_graph
from stitch_testing.random.relax_front_end import RelaxFrontEnd
from stitch_testing.random.sketch import Sketch
from tvm_stitch.config import StitchConfig

LLVM_GRAPHS, EMULATED_GRAPHS, CHUNK = 40, 25, 5
#: Elements of graphs in the emulator: every CUDA thread is interpreted with all checks on.
EMULATED_ELEMENTS = 4_000
SHAPES = {"row": (1, 50), "column": (50, 1)}


def failures(target: str, seeds: range, max_elements: int, config: StitchConfig | None = None) -> list[str]:
    pipeline = random_graphs.stitched_pipeline(target, config)
    levels = ("row", "grid", "row", "grid", "column")
    graphs = (random_graph(seed, max_elements, levels[seed % 5]) for seed in seeds)
    return [
        str(result) for result in (random_graphs.CHECKS[target](g, pipeline) for g in graphs) if not result.ok
    ]


@pytest.mark.parametrize("start", range(0, LLVM_GRAPHS, CHUNK))
def test_llvm(start: int) -> None:
    assert failures("llvm", range(start, start + CHUNK), 40_000) == []


@pytest.mark.parametrize("start", range(0, EMULATED_GRAPHS, CHUNK))
def test_emulated_cuda(start: int) -> None:
    assert failures("emulated-cuda", range(start, start + CHUNK), EMULATED_ELEMENTS) == []


@pytest.mark.parametrize("target", ["llvm", "emulated-cuda"])
def test_operators_that_stock_tvm_need_not_compile(target: str) -> None:
    pipeline, seen = random_graphs.stitched_pipeline(target), set()
    for seed in range(8):
        graph = random_graph(seed, EMULATED_ELEMENTS, LEVELS[seed % 3], more=True)
        result = random_graphs.CHECKS[target](graph, pipeline)
        assert result.ok, str(result)
        seen |= set(graph.operators)
    assert {"flip", "nn.pixel_shuffle", "ewise_fma"} <= seen


@pytest.mark.parametrize("start", range(2000, 2010, CHUNK))
def test_emulated_cuda_without_grid_barriers(start: int) -> None:
    """A phase is a kernel."""
    config = StitchConfig(grid_barriers=False)
    assert failures("emulated-cuda", range(start, start + CHUNK), EMULATED_ELEMENTS, config) == []


@pytest.mark.parametrize("start", range(9000, 9005, CHUNK))
@pytest.mark.parametrize("multiprocessors", [1, 3])
def test_emulated_cuda_on_few_multiprocessors(multiprocessors: int, start: int) -> None:
    """Blocks have many tasks, and what they retain is a part of small data too."""
    config = StitchConfig(multiprocessors=multiprocessors)
    assert failures("emulated-cuda", range(start, start + CHUNK), EMULATED_ELEMENTS, config) == []


@pytest.mark.parametrize("target", ["llvm", "emulated-cuda"])
def test_never_more_kernels_than_stock(target: str) -> None:
    made = random_graphs.emulated_target() if target == "emulated-cuda" else tvm.target.Target("llvm")
    pipeline = random_graphs.stitched_pipeline(target)
    for seed in range(30, 38):
        assert more_than_stock(random_graph(seed, 4_000, LEVELS[seed % 3]).mod, made, pipeline) == "", seed


@pytest.mark.parametrize("start", range(7000, 7005, CHUNK))
def test_stock_llvm_passes_too(start: int) -> None:
    """A generator that raises false alarms would raise them here."""
    graphs = (random_graph(seed, level=LEVELS[seed % 3]) for seed in range(start, start + CHUNK))
    results = [random_graphs.check_graph_llvm(graph) for graph in graphs]
    assert [str(result) for result in results if not result.ok] == []


def some_graphs() -> list[RandomGraph]:
    return [random_graph(seed, level="row") for seed in range(150)]


def test_graphs_cover_what_they_promise() -> None:
    graphs = some_graphs()
    counts = Counter(name for graph in graphs for name in set(graph.operators))
    for name in (
        "add multiply divide exp log tanh erf power rsqrt sum max min mean prod reshape permute_dims astype "
        "strided_slice concat where less logical_not clip broadcast_to expand_dims"
    ).split():
        assert counts[name] >= 3, name
    dtypes = {dtype for graph in graphs for _, dtype in graph.arguments}
    assert dtypes == {"float32", "float16", "bfloat16", "int32", "bool"}
    shapes = [shape for graph in graphs for shape, _ in graph.arguments]
    assert {len(shape) for shape in shapes} == {1, 2, 3, 4, 5}
    dims = {dim for shape in shapes for dim in shape}
    assert {1, 127, 257, 1024} <= dims and max(dims) > 4000
    sizes = [len(graph.operators) for graph in graphs]
    assert min(sizes) >= 3 and 37 <= max(sizes) <= 45 and np.mean(sizes) > 15
    assert max(graph.outputs for graph in graphs) > 5


@pytest.mark.parametrize("level", LEVELS)
def test_same_seed_same_graph(level: random_graphs.Level) -> None:
    first, second = random_graph(11, level=level), random_graph(11, level=level)
    assert tvm_ffi.structural_equal(first.mod, second.mod) and first.description == second.description
    assert not tvm_ffi.structural_equal(first.mod, random_graph(12, level=level).mod)


@pytest.mark.parametrize("seed", range(30))
def test_row_reduces_only_unless_asked(seed: int) -> None:
    graph = random_graph(seed, 2000, "row")
    bounds = graph.tolerance(graph.inputs(np.random.default_rng(0)))
    assert len(bounds) == graph.outputs and all(bound.value.size <= 2000 for bound in bounds)
    for binding in graph.mod["main"].body.blocks[0].bindings:
        name = getattr(getattr(binding.value, "op", None), "name", "")
        if name in ("relax.sum", "relax.mean", "relax.max", "relax.min", "relax.prod"):
            rank = len(binding.value.args[0].ty.shape.values)
            axes = sorted(int(axis) % rank for axis in binding.value.attrs.axis)
            assert axes == list(range(rank - len(axes), rank))


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="choose from row, column, grid"):
        random_graph(0, level="colum")  # type: ignore[arg-type]


REDUCES = frozenset(f"relax.{name}" for name in ("sum", "mean", "max", "min", "prod"))


def traits(graph: RandomGraph) -> set[str]:
    """Return the properties of a graph that the grid level is for, read off its module."""
    found: set[str] = set()
    depth: dict[relax.Var, int] = {}  # reductions on the longest path to a value
    small: set[relax.Var] = set()  # reduced, and not yet broadcast
    kinds: dict[relax.Var, set[str]] = {}
    part: dict[relax.Var, relax.Var] = {param: param for param in graph.mod["main"].params}
    operators: Counter[relax.Var] = Counter()

    def find(var: relax.Var) -> relax.Var:
        while part[var] is not var:
            var = part[var]
        return var

    for binding in graph.mod["main"].body.blocks[0].bindings:
        var, value = binding.var, binding.value
        sources = [v for v in relax.analysis.free_vars(value) if v in part]
        part[var] = var
        for source in sources:
            part[find(source)] = var
        depth[var] = max((depth.get(source, 0) for source in sources), default=0)
        if not isinstance(value, relax.Call):
            continue
        operators[var] += 1
        name = value.op.name
        if name in REDUCES:
            (source,) = sources
            shape = [int(extent) for extent in source.ty.shape.values]
            axes = {int(a) % len(shape) for a in value.attrs.axis}
            true = {axis for axis, extent in enumerate(shape) if extent > 1}
            reduced, kept = true & axes, true - axes
            depth[var] += bool(reduced)
            small.add(var)
            kind = "all" if not kept else "row" if min(reduced, default=99) > max(kept) else "column"
            kinds.setdefault(source, set()).add(kind)
            found |= {kind} if len(true) > 1 and reduced else set()
            found |= {"several"} if len(reduced) > 1 and kept else set()
            found |= {"long column"} if kind == "column" and min(reduced) == 0 and shape[0] >= 100 else set()
        elif name == "relax.permute_dims" and sources[0] in small:
            found.add("transposed")
        elif any(source in small for source in sources):
            wide = all(source in small for source in sources)
            size = np.prod([int(extent) for extent in var.ty.shape.values])
            if wide and size <= max(np.prod([int(e) for e in s.ty.shape.values]) for s in sources):
                small.add(var)
            else:
                found.add("read back")
    found |= {"both ways"} if any({"row", "column"} <= kind for kind in kinds.values()) else set()
    found |= {f"chain of {n}" for n in (2, 3) if max(depth.values()) >= n}
    sizes = Counter(find(var) for var in operators)
    found |= {"unconnected"} if sum(size >= 3 for size in sizes.values()) > 1 else set()
    return found


@pytest.mark.parametrize("max_elements", [40_000, EMULATED_ELEMENTS])
def test_the_grid_level_makes_what_it_is_for(max_elements: int) -> None:
    counts = Counter(t for seed in range(300) for t in traits(random_graph(seed, max_elements)))
    for trait, least in {
        "row": 100,
        "column": 150,
        "all": 80,
        "several": 60,
        "long column": 25,
        "both ways": 60,
        "chain of 2": 120,
        "chain of 3": 60,
        "read back": 150,
        "transposed": 60,
        "unconnected": 40,
    }.items():
        assert counts[trait] >= least, (trait, counts)


def test_the_row_level_reduces_rows() -> None:
    counts = Counter(t for seed in range(100) for t in traits(random_graph(seed, level="row")))
    assert counts["column"] == counts["long column"] == 0


def test_bounds_are_sharp_enough_to_see_a_fault() -> None:
    """A result off by 10% of its magnitude somewhere is out of bounds, for nearly every output."""
    seen = total = 0
    for seed in range(40):
        graph = random_graph(seed, level=LEVELS[seed % 3])
        for bound in graph.tolerance(graph.inputs(np.random.default_rng(2))):
            if bound.value.dtype == np.float64:
                place = np.argmax(np.abs(bound.value))
                scale = 0.1 * np.sqrt(np.mean(bound.value**2))
                total += 1
                seen += bool(bound.value.flat[place] + scale > bound.high.flat[place])
    assert total > 100 and seen > 0.9 * total


def test_a_compiler_failure_is_reported_and_does_not_raise() -> None:
    def broken(mod: object) -> object:
        raise RuntimeError("no such schedule")

    result = random_graphs.check_graph_llvm(random_graph(3), broken)
    assert not result.ok and result.error is not None and "no such schedule" in result.error


def test_stitch_ops_that_an_error_leaves_to_tvm_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers are TVM's and right. The error is this package's."""

    def broken(*args: object) -> object:
        raise KeyError("no such buffer")

    graph, pipeline = random_graph(3, 500), random_graphs.stitched_pipeline("llvm")
    assert random_graphs.check_graph_llvm(graph, pipeline).ok
    monkeypatch.setattr("tvm_stitch.relax.stitch.schedule_stitch_ops.emit", broken)
    result = random_graphs.check_graph_llvm(graph, pipeline)
    assert result.error is None and result.problems
    assert all("left to TVM: KeyError: no 'no such buffer'" in problem for problem in result.problems)


def test_wrong_results_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "violations", lambda outputs, bounds: ["output 0: wrong"])
    why, shown = random_graphs._work(random_graphs._Job(0, "llvm", 500, "row", True, True, StitchConfig()))
    assert why == "out of bounds" and shown.startswith("FAIL seed 0") and "output 0: wrong" in shown
    assert "def main" in shown


def test_long_run(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--count", "2", "--stock", "--max-elements", "500"]
    assert random_graphs.main(arguments) == 0
    assert "2 graphs on llvm: 2 right, 0 failed" in capsys.readouterr().out
    assert random_graphs.main([*arguments, "--timeout", "0.01"]) == 1
    printed = capsys.readouterr().out
    assert "failed seeds: 0 1" in printed and "2 times: no answer in # s" in printed


def test_a_cut_graph_is_a_working_part_of_the_whole() -> None:
    graph = random_graph(11, 2000)
    part = random_graphs.cut(graph, 3)
    assert part.outputs == 1 and len(part.mod["main"].body.blocks[0].bindings) <= 4
    assert random_graphs.check_graph_llvm(part).ok


def test_errors_are_described_in_one_line() -> None:
    noisy = RuntimeError(
        'kernel.cu(3): warning: x\nkernel.cu(7): error: identifier "h" is undefined\n1 error\n\0'
    )
    assert random_graphs.describe_error(noisy).endswith('error: identifier "h" is undefined')
    native = ValueError('File "ir.cc", line 3\nCheck failed: a == b')
    assert random_graphs.describe_error(native) == "ValueError: Check failed: a == b"
    assert random_graphs.describe_error(KeyError()) == "KeyError: no message"


def test_sizes_are_checked_before_anything_is_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    front = RelaxFrontEnd()
    sketch = Sketch(np.random.default_rng(0), front, max_elements=100)
    with front.function([(shape, "float32") for shape in SHAPES.values()]) as (row, column):
        for var, shape in zip((row, column), SHAPES.values(), strict=True):
            sketch.add_input(var, np.ones(shape, "float32"))
        monkeypatch.setattr(front, "evaluate", None)
        assert sketch.emit(relax.op.add(row, column), *sketch.nodes) is None
        front.finish([row])
