# SPDX-License-Identifier: Apache-2.0
"""The generated CUDA has vectors, values computed once, barriers outside conditions and linear size."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

import tvm_stitch.relax
from cuda_emulator import run_cuda
from stitch_testing.random.graphs import emulated_target
from stitch_testing.reference.relax import evaluate, mismatches
from tests.graph.helpers import H200, build, check_emulated, cuda_source, draw, graph, plan, symbol
from tvm_stitch.config import StitchConfig
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.plan.gpu.mapping import Storage
from tvm_stitch.plan.in_block import plan_in_block
from tvm_stitch.testing.workloads import cases
from tvm_stitch.testing.workloads.case import Case

Emit = Callable[[relax.Expr], relax.Expr]


@pytest.mark.parametrize("case", cases.cases("test"), ids=lambda case: case.name)
def test_kernels_launched(case: Case) -> None:
    """Kernels are counted in a run and in the compiled module. The numbers agree with float64."""
    mod, inputs = case.build(), case.inputs(np.random.default_rng(5))
    target = emulated_target()
    pipeline = tvm_stitch.relax.pipeline(target)
    done = run_cuda(mod, inputs, target=target, relax_pipeline=pipeline).check()
    counted = count_kernels(mod, target, pipeline)
    assert len(done.launches) == counted.total
    joined = 2 if case.matmuls else 0  # queries, keys and values are one product
    assert counted.compute_intensive == case.matmuls - joined
    if case.matmuls:
        assert counted.memory_intensive <= case.kernels
    else:
        assert counted.memory_intensive == 1
    assert mismatches(list(done.outputs), evaluate(mod, inputs), case.tolerance) == []


def kernel_bodies(source: str) -> list[str]:
    """Return the text of every kernel (declarations without a body left out)."""
    return [k for k in source.split('extern "C" __global__')[1:] if "{" in k]


def barriers_in_conditions(body: str) -> list[str]:
    """Lines of barriers and shuffles inside the braces of an ``if``."""
    found, stack = [], []
    for line in body.splitlines():
        for token in re.findall(r"\bif\s*\(|[{}]|__syncthreads|__shfl", line):
            if token.startswith("if"):
                stack.append("if?")
            elif token == "{":
                stack.append(
                    "if" if stack and stack[-1] == "if?" and not stack.pop().endswith("x") else "block"
                )
            elif token == "}":
                stack.pop()
            elif "if" in stack or "if?" in stack:
                found.append(line.strip())
    return found


def test_the_search_for_barriers_in_conditions_finds_them() -> None:
    bad = "{ for (int i = 0; i < 2; ++i) { if (i < 1) {\n for (;;) {\n __syncthreads(); } } } }"
    good = "{ if (a < b) { c = 1; } for (;;) {\n __syncthreads(); } }"
    assert barriers_in_conditions(bad) == ["__syncthreads(); } } } }"]
    assert barriers_in_conditions(good) == []


@pytest.mark.parametrize(
    ("rows", "columns"), [(7, 33), (300, 33), (3, 4097), (5, 12289), (2, 65537), (2, 70001)], ids=str
)
def test_no_barrier_in_a_condition(rows: int, columns: int) -> None:
    (body,) = kernel_bodies(cuda_source(cases.softmax_add_layer_norm_gelu(rows, columns).build()))
    assert "__shfl_xor_sync" in body
    assert barriers_in_conditions(body) == []


@pytest.mark.parametrize(
    ("dtype", "columns", "vector"),
    [
        ("float32", 1024, "float4"),
        ("float32", 4100, "float4"),
        ("float32", 70000, "float4"),
        ("float32", 66, "float2"),
        ("float16", 1024, "uint4"),
        ("bfloat16", 4096, "uint4"),
        ("float16", 516, "half4"),
        ("int8", 1024, "int2"),
        ("int32", 1024, "int4"),
    ],
)
def test_loads_and_stores_are_vectors_where_divisible(dtype: str, columns: int, vector: str) -> None:
    def body(emit: Emit, x: Any) -> Any:
        return R.subtract(x, emit(R.max(x, -1, True)))

    source = cuda_source(build(body, ((64, columns), dtype)))
    (kernel,) = kernel_bodies(source)
    accesses = re.findall(rf"\*\({vector}\*\)\((\w+) \+", kernel)
    arrays = re.findall(r"(\w+)_ptr|__restrict__ (\w+)", kernel.split("{")[0])
    names = {name for pair in arrays for name in pair if name}
    assert len({a for a in accesses if a in names}) == 2, accesses


@pytest.mark.parametrize(("dtype", "vector", "times"), [("float32", "float4", 4), ("float16", "uint4", 2)])
def test_a_symbolic_size_hides_no_alignment(dtype: str, vector: str, times: int) -> None:
    """TVM computes ``8 * n`` on the host: of a difference with such a number it knows no alignment."""

    def compared(emit: Emit, x: relax.Expr) -> list[relax.Expr]:
        return [R.less(emit(R.flip(x, 0)), x)]

    source = cuda_source(build(compared, ((symbol("n"), 8, 1), dtype)))
    assert len(re.findall(rf"= \*\({vector}\*\)\(x", source)) == times


@pytest.mark.parametrize("columns", [33, 127, 1001, 4097])
def test_scalar_where_rows_are_not_aligned(columns: int) -> None:
    source = cuda_source(cases.softmax(64, columns).build())
    assert not re.search(r"\*\(float[24]\*\)\((x|T_\w+)", "".join(kernel_bodies(source)))


@pytest.mark.parametrize(("columns", "vector"), [(1000, "float4"), (1028, "float4"), (132, "float4")])
def test_a_tail_of_vectors(columns: int, vector: str) -> None:
    """Divisible by the vector but not by what the threads cover: still vectors, in a condition."""
    case = cases.layer_norm(9, columns)
    mapping = plan(case.build()).stage.mapping
    assert any(mapping.covered(c) != c for c in [columns])
    (kernel,) = kernel_bodies(cuda_source(case.build()))
    assert vector in kernel and "if (" in kernel
    check_emulated(case.build(), case.inputs(np.random.default_rng(0)))


def in_loops(kernel: str, pattern: str) -> list[int]:
    """Return the number of loops around every match of ``pattern`` in a kernel."""
    depth: list[bool] = []
    pending = False
    found = []
    for token in re.findall(rf"\bfor \(|[{{}}]|{pattern}", kernel):
        if token == "for (":
            pending = True
        elif token == "{":
            depth.append(pending)
            pending = False
        elif token == "}":
            depth.pop()
        else:
            found.append(sum(depth))
    return found


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("columns", [1024, 999])
def test_power_is_computed_once_a_row(dtype: str, columns: int) -> None:
    """One evaluation by the one warp that has the row, before the row's columns."""
    case = cases.power_broadcast_add(65536, columns, dtype)
    mapping = plan(case.build()).stage.mapping
    assert mapping.threads == 32 and not mapping.split
    (kernel,) = kernel_bodies(cuda_source(case.build()))
    assert in_loops(kernel, r"tvm_stitch_pow\(") == [0]
    few = cases.power_broadcast_add(11, columns, dtype)
    check_emulated(few.build(), few.inputs(np.random.default_rng(1)))


@pytest.mark.parametrize(
    ("rows", "columns", "storage", "times"),
    [
        (64, 1024, Storage.REGISTERS, 1),
        (5, 999, Storage.REGISTERS, 1),
        (7, 12289, Storage.REGISTERS, 1),
        (2, 50000, Storage.SHARED, 2),
        (2, 66000, Storage.NOWHERE, 2),
    ],
)
def test_how_often_a_heavy_value_is_computed(rows: int, columns: int, storage: Storage, times: int) -> None:
    """softmax's exponential: once where it is kept, twice where only the row is, or not even that."""
    config = StitchConfig(clusters=False, grid_barriers=False)
    case = cases.softmax(rows, columns)
    mapping = plan_in_block(graph(case.build()), H200, config).stage.mapping
    assert mapping.storage is storage
    (kernel,) = kernel_bodies(cuda_source(case.build(), config))
    unrolled = mapping.of(columns).vector * mapping.of(columns).chunks
    rescaled = times > 1  # a warp's sum to the row's maximum
    assert len(re.findall(r"expf?\(", kernel)) == times * unrolled + rescaled


def test_an_element_that_an_index_picks_is_read_first() -> None:
    """A label, and the logit that it picks: both are on their way while the row is reduced."""

    def body(emit: Emit, x: Any, label: Any) -> Any:
        picked = emit(R.gather_elements(x, emit(R.expand_dims(label, 1)), axis=1))
        total = emit(R.sum(emit(R.exp(x)), -1, True))
        return [emit(R.subtract(emit(R.log(total)), picked))]

    specs = [((64, 4096), "float32"), ((64,), "int64")]
    mod = build(body, *specs)
    (kernel,) = kernel_bodies(cuda_source(mod))
    first = kernel.index("__shfl_xor_sync")
    assert "x1_ptr" in kernel[:first] and "x1_ptr" not in kernel[first:]
    rng = np.random.default_rng(0)
    check_emulated(mod, [rng.random((64, 4096), "float32"), rng.integers(0, 4096, 64)])


def doubling(levels: int, dtype: str = "float32") -> Callable[..., Any]:
    """x = x * x + x, again and again: every value is used twice, so that inlining doubles the code each time."""

    def body(emit: Emit, x: Any) -> Any:
        for _ in range(levels):
            x = emit(R.add(emit(R.multiply(emit(R.multiply(x, relax.const(0.1, dtype))), x)), x))
        return [x]

    return body


def tokens(source: str) -> int:
    """Return the size of a source, independent of the lengths of its names."""
    return len(re.findall(r"\w+|[^\w\s]", source))


def size_on_cuda(body: Callable[..., Any], *specs: Any) -> int:
    return tokens(cuda_source(build(body, *specs)))


def size_on_llvm(body: Callable[..., Any], *specs: Any) -> int:
    target = tvm.target.Target("llvm")
    pipeline = tvm_stitch.relax.pipeline(target)
    with target:
        lowered = pipeline(build(body, *specs))
    return tokens(lowered.script())


@pytest.mark.parametrize("measure", [size_on_cuda, size_on_llvm])
@pytest.mark.parametrize("shape", [(8, 64), (4, 33)], ids=str)
def test_code_grows_linearly_with_values_used_twice(
    measure: Callable[..., int], shape: tuple[int, int]
) -> None:
    start = time.process_time()
    sizes = [measure(doubling(levels), (shape, "float32")) for levels in (10, 20, 40)]
    assert time.process_time() - start < 20
    assert sizes[2] - sizes[1] < 3 * (sizes[1] - sizes[0])
    assert sizes[2] < 6 * sizes[0]


@pytest.mark.parametrize("measure", [size_on_cuda, size_on_llvm])
def test_code_grows_linearly_with_row_values_used_twice(measure: Callable[..., int]) -> None:
    def body(levels: int) -> Callable[..., Any]:
        def make(emit: Emit, x: Any) -> Any:
            row = doubling(levels)(emit, emit(R.sum(x, -1, True)))[0]
            return [R.add(x, row)]

        return make

    sizes = [measure(body(levels), ((8, 64), "float32")) for levels in (10, 20, 40)]
    assert sizes[2] - sizes[1] < 3 * (sizes[1] - sizes[0]) and sizes[2] < 6 * sizes[0]


@pytest.mark.parametrize("measure", [size_on_cuda, size_on_llvm])
def test_code_grows_linearly_with_selections_used_twice(measure: Callable[..., int]) -> None:
    """Guarded reads (concat of a value with itself) may be evaluated in place, yet not doubled at every level."""

    def body(levels: int) -> Callable[..., Any]:
        def make(emit: Emit, x: Any) -> Any:
            for _ in range(levels):
                x = emit(R.where(emit(R.greater(x, relax.const(0.5, "float32"))), emit(R.negative(x)), x))
            return [x]

        return make

    sizes = [measure(body(levels), ((8, 64), "float32")) for levels in (10, 20, 40)]
    assert sizes[2] - sizes[1] < 3 * (sizes[1] - sizes[0]) and sizes[2] < 6 * sizes[0]


def test_a_deep_graph_is_right() -> None:
    check_emulated(
        build(doubling(40), ((4, 33), "float32")), draw([((4, 33), "float32")], low=-0.1, high=0.1)
    )


def test_outputs_of_several_dtypes_and_sizes() -> None:
    def body(emit: Emit, x: Any) -> Any:
        high = emit(R.max(emit(R.abs(x)), -1, True))
        scale = emit(R.multiply(high, relax.const(1 / 127, "float32")))
        scale = emit(R.maximum(scale, relax.const(1e-3, "float32")))
        quantized = emit(R.astype(emit(R.round(emit(R.divide(x, scale)))), "int8"))
        return [quantized, scale, R.astype(emit(R.add(x, high)), "float16"), R.greater(x, high)]

    specs = [((7, 260), "float32")]
    done = check_emulated(build(body, *specs), draw(specs))
    assert [str(o.dtype) for o in done.outputs] == ["int8", "float32", "float16", "bool"]


def test_an_input_returned_beside_a_result_is_written() -> None:
    def body(emit: Emit, x: Any) -> Any:
        same = emit(R.reshape(x, (4, 2, 8)))
        return [R.exp(same), same]

    specs = [((8, 8), "float32")]
    check_emulated(build(body, *specs), draw(specs), launches=None)


@pytest.mark.parametrize("rows", [1, 5, 197])
@pytest.mark.parametrize(
    ("columns", "dtype"), [(768, "float32"), (770, "float16"), (33, "float32"), (2300, "float32")]
)
def test_early_loads(rows: int, columns: int, dtype: str) -> None:
    """A scale and a residual behind a row's sum are loaded before its barriers."""

    def body(emit: Emit, x: Any, scale: Any, residual: Any) -> list[Any]:
        centred = emit(R.subtract(x, emit(R.sum(x, axis=-1, keepdims=True))))
        return [R.add(emit(R.multiply(centred, scale)), residual)]

    specs = [((rows, columns), dtype), ((columns,), dtype), ((rows, columns), dtype)]
    mod = build(body, *specs)
    assert len(plan(mod).stage.early) == 2
    check_emulated(mod, draw(specs, seed=rows))


def test_early_loads_come_before_the_first_barrier() -> None:
    def body(emit: Emit, x: Any, scale: Any, offset: Any) -> list[Any]:
        return [R.nn.layer_norm(x, scale, offset, axes=[-1])]

    specs = [((64, 768), "float32"), ((768,), "float32"), ((768,), "float32")]
    (kernel,) = kernel_bodies(cuda_source(build(body, *specs)))
    before, *_ = kernel.split("__syncthreads")
    assert "(x1_ptr + " in before and "(x2_ptr + " in before


@pytest.mark.parametrize("elements", [16380, 16384, 16388, 20000, 32770])
def test_threads_of_flat_kernels_have_two_vectors_where_there_are_enough(elements: int) -> None:
    config = StitchConfig(multiprocessors=1)
    mod = build(lambda emit, x, y: [R.exp(emit(R.add(x, y)))], *[((elements,), "float32")] * 2)
    done = check_emulated(mod, draw([((elements,), "float32")] * 2), config=config)
    (launch,) = done.launches
    vector = 4 if elements % 4 == 0 else 2
    vectors = 2 if elements >= 2 * vector * 2048 else 1
    assert launch.grid[0] == -(-elements // (128 * vector * vectors))
