# SPDX-License-Identifier: Apache-2.0
"""Random Relay graphs: the generator is deterministic and varied, and agrees with stock TVM."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import tvm

from stitch_testing.random.growth import LEVELS
from stitch_testing.relay import random_graphs
from stitch_testing.relay.random_graphs import check_graph_llvm, random_graph
from stitch_testing.relay.run import Params, build_stitched, build_stock


@pytest.mark.parametrize("seed", range(10))
def test_stock_llvm_is_right(seed: int) -> None:
    """A generator or reference that raises false alarms would raise them here."""
    result = check_graph_llvm(random_graph(seed, 4_000, LEVELS[seed % 3]))
    assert result.ok, str(result)


@pytest.mark.parametrize("level", LEVELS)
def test_same_seed_same_graph(level: str) -> None:
    first, second = (random_graph(11, 4_000, level) for _ in range(2))
    assert tvm.ir.structural_equal(first.mod, second.mod, map_free_vars=True)
    assert first.description == second.description
    assert not tvm.ir.structural_equal(first.mod, random_graph(12, 4_000, level).mod)


def test_graphs_cover_what_they_promise() -> None:
    graphs = [random_graph(seed, 4_000, LEVELS[seed % 3]) for seed in range(120)]
    counts = Counter(name for graph in graphs for name in set(graph.operators))
    for name in (
        "add multiply divide exp log tanh erf power rsqrt sum max min mean prod reshape permute_dims astype "
        "strided_slice concat where less clip broadcast_to expand_dims pad take softmax dense batch_matmul"
    ).split():
        assert counts[name] >= 2, (name, counts)
    assert {dtype for graph in graphs for _, dtype in graph.arguments} == {
        "float32",
        "float16",
        "int32",
        "bool",
    }
    assert {len(shape) for graph in graphs for shape, _ in graph.arguments} == {1, 2, 3, 4, 5}
    sizes = [len(graph.operators) for graph in graphs]
    assert min(sizes) >= 3 and max(sizes) > 35 and np.mean(sizes) > 12
    assert max(graph.outputs for graph in graphs) > 5


def test_parts_without_connection_occur() -> None:
    def parts(seed: int) -> int:
        """Groups of parameters that some output needs together."""
        main = random_graph(seed, 1_000).mod["main"]
        body = list(main.body.fields) if isinstance(main.body, tvm.relay.Tuple) else [main.body]
        groups: list[set[str]] = []
        for output in body:
            names = {str(var.name_hint) for var in tvm.relay.analysis.free_vars(output)}
            joined = [group for group in groups if group & names]
            groups = [group for group in groups if not group & names] + [names.union(*joined)]
        return sum(bool(group) for group in groups)

    assert sum(parts(seed) > 1 for seed in range(20)) >= 3


def test_bounds_are_sharp_enough_to_see_a_fault() -> None:
    """A result off by 10% of its magnitude somewhere is out of bounds, for nearly every output."""
    seen = total = 0
    for seed in range(30):
        graph = random_graph(seed, 4_000, LEVELS[seed % 3])
        for bound in graph.tolerance(graph.inputs(np.random.default_rng(2))):
            if bound.value.dtype == np.float64:
                place = np.argmax(np.abs(bound.value))
                scale = 0.1 * np.sqrt(np.mean(bound.value**2))
                total += 1
                seen += bool(bound.value.flat[place] + scale > bound.high.flat[place])
    assert total > 70 and seen > 0.9 * total


def test_a_wrong_result_is_reported() -> None:
    """A builder that compiles another function than it was given is found out."""

    def spoiled(mod: tvm.IRModule, target: tvm.target.Target, params: Params) -> object:
        function = mod["main"]
        fields = list(function.body.fields)
        fields[0] = tvm.relay.add(fields[0], tvm.relay.const(0.5))
        wrong = tvm.relay.Function(function.params, tvm.relay.Tuple(fields))
        return build_stock(tvm.IRModule.from_expr(wrong), target, params)

    graph = random_graph(12, 2_000, "row")
    first = graph.mod["main"].body.fields[0]
    assert first.checked_type.dtype == "float32"
    result = check_graph_llvm(graph, spoiled)
    assert result.error is None and any("output 0" in problem for problem in result.problems)


def test_a_compiler_failure_is_reported_and_does_not_raise() -> None:
    def broken(*args: object) -> object:
        raise RuntimeError("no such schedule")

    result = check_graph_llvm(random_graph(3, 1_000), broken)
    assert not result.ok and result.error is not None and "no such schedule" in result.error


def test_stitch_ops_that_an_error_leaves_to_tvm_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers are TVM's and right. The error is this package's."""

    def broken(*args: object) -> object:
        raise KeyError("no such buffer")

    graph = random_graph(3, 1_000)
    assert check_graph_llvm(graph, build_stitched).ok
    monkeypatch.setattr("tvm_stitch.relay.schedule_stitch_ops.emit", broken)
    result = check_graph_llvm(graph, build_stitched)
    assert result.error is None and result.problems
    assert all("left to TVM: KeyError: no 'no such buffer'" in problem for problem in result.problems)


def test_long_run(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--start", "5", "--count", "2", "--stock", "--max-elements", "500", "--jobs", "2"]
    assert random_graphs.main(arguments) == 0
    assert "2 graphs on llvm: 2 right, 0 failed" in capsys.readouterr().out
    assert random_graphs.main([*arguments, "--timeout", "0.01"]) == 1
    assert "failed seeds: 5 6" in capsys.readouterr().out
