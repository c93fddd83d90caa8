# SPDX-License-Identifier: Apache-2.0
"""Bytes moved and held, counted by hand for known kernels."""

from __future__ import annotations

from typing import Any

import pytest
from tvm.relax import op as R

from tests.graph.helpers import H200, build, graph, plan, symbol
from tvm_stitch.config import StitchConfig
from tvm_stitch.graph.sizes import named
from tvm_stitch.plan.gpu.mapping import Storage
from tvm_stitch.plan.in_block import plan_in_block
from tvm_stitch.plan.memory import bytes_of, least_bytes, traffic
from tvm_stitch.testing.workloads import cases
from tvm_stitch.testing.workloads.case import Case

F32 = "float32"


@pytest.mark.parametrize(("dtype", "size"), [(F32, 4), ("float16", 2), ("bfloat16", 2)])
def test_softmax_reads_and_writes_its_size(dtype: str, size: int) -> None:
    moved = traffic(plan(cases.softmax(64, 1024, dtype).build()))
    assert (moved.read, moved.written, moved.least) == (
        64 * 1024 * size,
        64 * 1024 * size,
        2 * 64 * 1024 * size,
    )


def test_rows_that_are_read_again_count_again() -> None:
    config = StitchConfig(clusters=False, grid_barriers=False)
    moved = traffic(plan_in_block(graph(cases.softmax(64, 100_000).build()), H200, config))
    assert moved.read == 3 * 64 * 100_000 * 4 and moved.least == 2 * 64 * 100_000 * 4


def test_rows_of_a_cluster_are_read_once() -> None:
    kernel_plan = plan(cases.softmax(64, 100_000).build())
    moved = traffic(kernel_plan)
    assert kernel_plan.stage.mapping.row_splits == 2 and moved.read + moved.written == moved.least


def test_rows_read_again_through_other_axes() -> None:
    """Normalisation of a channel of <32, 300, 8, 8>: no access is along the flat index. So the data is read once for
    both sums, and once to be normalised. Some of it is also read for their shift.
    """

    def body(emit: Any, x: Any) -> Any:
        centred = emit(R.subtract(x, emit(R.mean(x, [0, 2, 3], True))))
        return R.divide(
            centred, emit(R.sqrt(emit(R.sum(emit(R.multiply(centred, centred)), [0, 2, 3], True))))
        )

    shape = (4096, 300, 8, 8)
    config = StitchConfig(clusters=False, grid_barriers=False)
    kernel_plan = plan_in_block(graph(build(body, (shape, F32))), H200, config)
    size = 4096 * 300 * 64 * 4
    assert kernel_plan.stage.mapping.storage is Storage.NOWHERE and traffic(kernel_plan).read == 2 * size


def test_rows_in_shared_memory_are_read_once() -> None:
    moved = traffic(plan(cases.softmax(64, 50_000).build()))
    assert moved.read + moved.written == moved.least


@pytest.mark.parametrize("case", [c for c in cases.cases("gpu") if not c.matmuls], ids=lambda case: case.name)
def test_the_least_is_what_the_case_counts(case: Case) -> None:
    moved = traffic(plan(case.build()))
    assert moved.least == case.bytes_least()
    assert moved.read + moved.written >= moved.least
    if case.name != "group_norm_silu":
        assert moved.read + moved.written == moved.least


def test_a_few_samples_of_a_computed_value_read_few_elements() -> None:
    def samples(emit: Any, x: Any) -> Any:
        sampled = emit(R.strided_slice(emit(R.exp(emit(R.add(x, x)))), [0], [0], [1000], [250]))
        return R.sum(sampled, [1])

    assert least_bytes(graph(build(samples, ((1000, 8), F32)))) == (4 * 8 + 4) * 4

    def both(emit: Any, x: Any) -> Any:
        whole = emit(R.exp(x))
        return [whole, R.sum(emit(R.strided_slice(whole, [0], [0], [1000], [250])), [1])]

    assert least_bytes(graph(build(both, ((1000, 8), F32)))) == (2 * 1000 * 8 + 4) * 4


@pytest.mark.parametrize(("size", "used"), [(3, 36), (9, 100)])
def test_each_element_of_a_window_counts(size: int, used: int) -> None:
    """A linear resize reads four elements for each of its own, and an input of 100 has no more."""
    resized = graph(build(lambda emit, x: R.image.resize2d(x, (size, size)), ((1, 1, 10, 10), F32)))
    assert least_bytes(resized) == (used + size * size) * 4


def test_symbolic_sizes_are_polynomials() -> None:
    moved = traffic(plan(build(lambda emit, x: R.exp(x), ((symbol("n"), 24), F32))))
    assert (moved.read, moved.moved) == (named("n") * (24 * 4), named("n") * (2 * 24 * 4))


@pytest.mark.parametrize(
    ("dtype", "size"), [("bool", 12), ("int8", 12), ("float16", 24), (F32, 48), ("int64", 96)]
)
def test_bytes_of_a_tensor(dtype: str, size: int) -> None:
    def body(emit: Any, x: Any) -> Any:
        return [R.logical_not(x) if dtype == "bool" else R.add(x, x)]

    kernel_plan = plan(build(body, ((3, 4), dtype)))
    assert bytes_of(kernel_plan.graph.inputs[0]) == size
