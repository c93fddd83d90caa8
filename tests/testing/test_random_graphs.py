# SPDX-License-Identifier: Apache-2.0
"""Random memory-intensive graphs: the generator, and stitched results on llvm and emulated CUDA."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import tvm_ffi
from tvm import relax

from tvm_stitch.testing import random_graphs
from tvm_stitch.testing.random_graphs import RandomGraph, random_graph
from tvm_stitch.testing.random_steps import Sketch

LLVM_GRAPHS, EMULATED_GRAPHS, CHUNK = 300, 100, 10
#: What the emulator runs: every CUDA thread is interpreted with all checks on.
EMULATED_ELEMENTS = 4_000
SHAPES = {"row": (1, 50), "column": (50, 1)}


def failures(target: str, seeds: range, max_elements: int) -> list[str]:
    pipeline = random_graphs.stitched_pipeline(target)
    graphs = (random_graph(seed, max_elements, column_reduces=seed % 5 == 0) for seed in seeds)
    return [
        str(result) for result in (random_graphs.CHECKS[target](g, pipeline) for g in graphs) if not result.ok
    ]


@pytest.mark.parametrize("start", range(0, LLVM_GRAPHS, CHUNK))
def test_llvm(start: int) -> None:
    assert failures("llvm", range(start, start + CHUNK), 40_000) == []


@pytest.mark.parametrize("start", range(0, EMULATED_GRAPHS, CHUNK))
def test_emulated_cuda(start: int) -> None:
    assert failures("emulated-cuda", range(start, start + CHUNK), EMULATED_ELEMENTS) == []


@pytest.mark.parametrize("start", range(7000, 7020, CHUNK))
def test_stock_llvm_passes_too(start: int) -> None:
    """A generator that raises false alarms would raise them here."""
    results = [random_graphs.check_graph_llvm(random_graph(seed)) for seed in range(start, start + CHUNK)]
    assert [str(result) for result in results if not result.ok] == []


def some_graphs() -> list[RandomGraph]:
    return [random_graph(seed) for seed in range(150)]


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


def test_same_seed_same_graph() -> None:
    first, second = random_graph(11), random_graph(11)
    assert tvm_ffi.structural_equal(first.mod, second.mod) and first.description == second.description
    assert not tvm_ffi.structural_equal(first.mod, random_graph(12).mod)


@pytest.mark.parametrize("seed", range(30))
def test_row_reduces_only_unless_asked(seed: int) -> None:
    graph = random_graph(seed, 2000)
    bounds = graph.tolerance(graph.inputs(np.random.default_rng(0)))
    assert len(bounds) == graph.outputs and all(bound.value.size <= 2000 for bound in bounds)
    for binding in graph.mod["main"].body.blocks[0].bindings:
        name = getattr(getattr(binding.value, "op", None), "name", "")
        if name in ("relax.sum", "relax.mean", "relax.max", "relax.min", "relax.prod"):
            rank = len(binding.value.args[0].ty.shape.values)
            axes = sorted(int(axis) % rank for axis in binding.value.attrs.axis)
            assert axes == list(range(rank - len(axes), rank))


def test_bounds_are_sharp_enough_to_see_a_fault() -> None:
    """A result off by 10% of its magnitude somewhere is out of bounds, for nearly every output."""
    seen = total = 0
    for seed in range(40):
        graph = random_graph(seed)
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


def test_wrong_results_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_graphs, "violations", lambda outputs, bounds: ["output 0: wrong"])
    why, shown = random_graphs._work(random_graphs._Job(0, "llvm", 500, False, True, True))
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
    builder = relax.BlockBuilder()
    sketch = Sketch(np.random.default_rng(0), builder, max_elements=100)
    row, column = (relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in SHAPES.items())
    with builder.function("main", [row, column]):
        for var, shape in zip((row, column), SHAPES.values(), strict=True):
            sketch.add_input(var, np.ones(shape, "float32"))
        monkeypatch.setattr(sketch.frame, "expr", None)
        assert sketch.emit(relax.op.add(row, column), *sketch.nodes) is None
        builder.emit_func_output(row)
