# SPDX-License-Identifier: Apache-2.0
"""Horizontal fusion: which independent scopes share a launch, and that no operator waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
from tvm.relax import op as R

from cuda_emulator import run_cuda
from stitch_testing.random.graphs import emulated_target, stitched_pipeline
from stitch_testing.reference.relax import evaluate, mismatches
from tests.choices import CHOICES
from tests.graph.helpers import H200, build
from tests.scope.nodes import compute, memory
from tvm_stitch.config import StitchConfig
from tvm_stitch.scope.estimate import estimate_kernel, in_block
from tvm_stitch.scope.horizontal import _HorizontalFusion
from tvm_stitch.scope.identify import identify
from tvm_stitch.scope.merging import Merger
from tvm_stitch.scope.node import Node
from tvm_stitch.scope.quotient import Quotient


def scopes(nodes: Sequence[Node], **options: object) -> set[frozenset[str]]:
    return {
        frozenset(n.name for n in s.nodes) for s in identify(nodes, StitchConfig(**options), CHOICES).scopes
    }


def on_a_gpu(nodes: Sequence[Node], **options: object) -> set[frozenset[str]]:
    config = StitchConfig(**options)
    found = identify(nodes, config, CHOICES, estimate=lambda graph: estimate_kernel(graph, H200, config))
    return {frozenset(n.name for n in s.nodes) for s in found.scopes}


def two(shape: tuple[int, int] = (8, 64)) -> list[Node]:
    return [
        memory("sum", ["x"], "a"), memory("spread", ["x", "a"], "b", escapes=True),
        memory("sum", ["y"], "c", shape), memory("spread", ["y", "c"], "d", shape, escapes=True),
    ]  # fmt: skip


def test_independent_scopes_of_equal_shape_are_joined() -> None:
    assert scopes(two()) == {frozenset("abcd")}
    assert scopes(two(), horizontal_fusion=False) == {frozenset("ab"), frozenset("cd")}


def test_scopes_of_other_rows_need_a_grid() -> None:
    apart = {frozenset("ab"), frozenset("cd")}
    assert scopes(two((16, 64))) == apart
    assert on_a_gpu(two((16, 64))) == {frozenset("abcd")}
    assert on_a_gpu(two((16, 64)), horizontal_fusion=False) == apart


def test_scopes_with_a_path_between_them_are_not() -> None:
    nodes = [
        memory("sum", ["x"], "a"), memory("spread", ["x", "a"], "b"), compute(["b"], "m"),
        memory("sum", ["m"], "c"), memory("spread", ["m", "c"], "d", escapes=True),
    ]  # fmt: skip
    assert scopes(nodes) == {frozenset("ab"), frozenset("cd")}


def test_joining_one_pair_may_forbid_another() -> None:
    """a -> m -> b and c -> n -> d: a joins d or b joins c, never both pairs crosswise."""
    nodes = [
        memory("exp", ["x"], "a"), memory("exp", ["y"], "c"), compute(["a"], "m"), compute(["c"], "n"),
        memory("sum", ["m"], "b", escapes=True), memory("sum", ["n"], "d", escapes=True),
    ]  # fmt: skip
    assert scopes(nodes) == {frozenset("ac"), frozenset("bd")}


def test_limits_hold() -> None:
    nodes = [memory("exp", [f"x{i}"], f"v{i}", escapes=True) for i in range(40)]
    found = identify(nodes, StitchConfig(max_arguments=10), CHOICES)
    assert max(len(s.inputs) + len(s.outputs) for s in found.scopes) <= 10
    assert len(found.scopes) == 8


#: Moves in less time than a launch takes, in a few times that, and in fifty times.
SMALL, LARGE, HUGE = (64, 64), (8192, 512), (65536, 1024)


def alone(name: str, shape: tuple[int, int], source: str = "") -> list[Node]:
    """Return a scope of its own, whose result leaves."""
    return [memory("exp", [source or f"{name}_in"], name, shape, escapes=True)]


def feeding(name: str, shape: tuple[int, int], source: str = "") -> list[Node]:
    """Return a scope whose result a matmul waits for."""
    return [memory("exp", [source or f"{name}_in"], name, shape), compute([name], f"{name}_m", escapes=True)]


def test_scopes_of_any_shapes_share_a_launch_when_all_are_small() -> None:
    nodes = [*alone("a", SMALL), *alone("b", (17, 9)), memory("sum", ["y"], "c", (300, 40), escapes=True)]
    assert on_a_gpu(nodes) == {frozenset("abc")}


def test_many_scopes_of_different_shapes() -> None:
    nodes = [n for i in range(30) for n in alone(f"v{i}", (3 + i, 40))]
    assert on_a_gpu(nodes) == {frozenset(f"v{i}" for i in range(30))}


def test_a_large_scope_takes_a_small_one_but_not_where_that_slows_it_down() -> None:
    assert on_a_gpu([*alone("a", LARGE), *alone("b", SMALL)]) == {frozenset("ab")}
    assert on_a_gpu([*alone("a", HUGE), *alone("b", SMALL)]) == {frozenset("a"), frozenset("b")}


def test_a_matmul_waits_for_small_work_beside_its_own_not_for_large() -> None:
    assert on_a_gpu([*feeding("a", SMALL), *feeding("b", (48, 40))]) == {frozenset("ab")}
    assert on_a_gpu([*feeding("a", SMALL), *alone("b", LARGE)]) == {frozenset("a"), frozenset("b")}
    assert on_a_gpu([*alone("a", SMALL), *feeding("b", LARGE)]) == {frozenset("ab")}


def test_nothing_waits_for_a_matmul_that_it_did_not_need() -> None:
    nodes = [*feeding("a", SMALL), compute(["x"], "n"), *alone("b", (48, 40), "n")]
    assert on_a_gpu(nodes, epilogues=False) == {frozenset("a"), frozenset("b")}
    equal = [*feeding("a", SMALL), compute(["x"], "n"), *alone("b", SMALL, "n")]
    assert on_a_gpu(equal, epilogues=False) == {frozenset("a"), frozenset("b")}


def test_what_nothing_waits_for_joins_what_comes_later() -> None:
    nodes = [*alone("a", SMALL), compute(["x"], "n"), *feeding("b", (48, 40), "n")]
    assert on_a_gpu(nodes, epilogues=False) == {frozenset("ab")}


def test_what_is_needed_late_joins_what_is_ready_late() -> None:
    """The matmul that reads a waits for n, by which b can be done, and for b."""
    nodes = [
        memory("exp", ["x"], "a", SMALL), compute(["y"], "n"),
        memory("exp", ["n"], "b", (48, 40)), compute(["a", "b"], "m", escapes=True),
    ]  # fmt: skip
    assert on_a_gpu(nodes, epilogues=False) == {frozenset("ab")}


def test_a_large_scope_of_the_same_shape_may_be_joined() -> None:
    """One row domain serves both, so that nothing gets slower. The matmuls come one after the other anyway."""
    assert on_a_gpu([*feeding("a", LARGE), *feeding("b", LARGE)]) == {frozenset("ab")}


def test_siblings_that_are_ready_at_different_times_stay_apart() -> None:
    """Both read x. If they were joined, the matmul that needs a would wait for n."""
    nodes = [
        memory("exp", ["x"], "a", LARGE), compute(["a"], "m", escapes=True), compute(["y"], "n"),
        memory("add", ["x", "n"], "b", LARGE, escapes=True),
    ]  # fmt: skip
    assert on_a_gpu(nodes, epilogues=False) == {frozenset("a"), frozenset("b")}


def test_pairs_of_different_shapes_that_cross() -> None:
    """a -> m -> d and b -> n -> c: a joins b or c joins d, and no cycle arises."""
    nodes = [
        *feeding("a", SMALL), *feeding("b", (48, 40)), memory("exp", ["b_m"], "c", SMALL, escapes=True),
        memory("exp", ["a_m"], "d", (48, 40), escapes=True),
    ]  # fmt: skip
    assert on_a_gpu(nodes, epilogues=False) == {frozenset("ab"), frozenset("cd")}


@pytest.mark.parametrize("option", [{"max_arguments": 8}, {"max_operators": 4}], ids=str)
def test_limits_hold_for_different_shapes(option: dict[str, int]) -> None:
    nodes = [n for i in range(22) for n in alone(f"v{i}", (3 + i, 40))]
    found = on_a_gpu(nodes, **option)
    assert sorted(map(len, found), reverse=True) == [4] * 5 + [2]


def test_two_unrelated_graphs_are_one_launch_and_right() -> None:
    def body(emit, x, y, z):  # type: ignore[no-untyped-def]
        shifted = emit(R.subtract(z, emit(R.mean(z, axis=-1, keepdims=True))))
        return [emit(R.nn.softmax(x, axis=-1)), emit(R.exp(emit(R.multiply(y, y)))), shifted]

    mod = build(body, ((37, 100), "float32"), ((13, 9), "float32"), ((5, 3, 70), "float32"))
    rng = np.random.default_rng(5)
    inputs = [rng.standard_normal(s).astype("float32") for s in ((37, 100), (13, 9), (5, 3, 70))]
    done = run_cuda(
        mod, inputs, target=emulated_target(), relax_pipeline=stitched_pipeline("emulated-cuda"), seed=3
    )
    done.check()
    (launch,) = done.launches
    assert not launch.cooperative and launch.grid[0] > 1
    assert mismatches(done.outputs, evaluate(mod, inputs), {"float32": (2e-6, 2e-6)}) == []


def test_a_sum_of_columns_beside_rows_is_one_launch_and_right() -> None:
    def body(emit, x, y):  # type: ignore[no-untyped-def]
        return [emit(R.nn.softmax(x, axis=-1)), emit(R.sum(y, axis=0))]

    mod = build(body, ((37, 100), "float32"), ((300, 70), "float32"))
    rng = np.random.default_rng(6)
    inputs = [rng.standard_normal(s).astype("float32") for s in ((37, 100), (300, 70))]
    done = run_cuda(
        mod, inputs, target=emulated_target(), relax_pipeline=stitched_pipeline("emulated-cuda"), seed=4
    )
    done.check()
    (launch,) = done.launches
    assert launch.cooperative
    assert mismatches(done.outputs, evaluate(mod, inputs), {"float32": (2e-5, 2e-5)}) == []


def test_a_path_through_another_scope_keeps_bins_apart_whatever_is_ready_when() -> None:
    """Merged siblings count as ready as late as the last of them, which may be behind what follows the others."""
    nodes = [memory("exp", ["x"], "a"), memory("exp", ["a"], "b"), memory("exp", ["b"], "c", escapes=True)]
    for i, node in enumerate(nodes):
        node.index = i
    merger = Merger(nodes, Quotient(nodes), StitchConfig(), CHOICES, partial(in_block, choices=CHOICES))
    assert not any(merger.alone(i) for i in range(3))
    fusion = _HorizontalFusion(merger, lambda s: True)
    fusion.ready[1] = 10
    assert not fusion._fits(fusion._bin(0), fusion._bin(2), weigh=False)
    assert not fusion._fits(fusion._bin(2), fusion._bin(0), weigh=False)
