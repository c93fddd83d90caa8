# SPDX-License-Identifier: Apache-2.0
"""Matrix products by our template: right at every extent, packed and as they lie, and called in their stead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build, legalize, prim_funcs, symbol
from tvm_stitch import StitchConfig
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.stitch.compute_templates import ComputeTemplates

F32 = "float32"
TARGETS = {"sse": "x86-64", "avx2": "haswell"}


def target(name: str) -> tvm.target.Target:
    return tvm.target.Target({"kind": "llvm", "mcpu": TARGETS[name]})


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(F32)


def run(
    mod: tvm.IRModule, where: tvm.target.Target, *arrays: np.ndarray
) -> tuple[np.ndarray, dict[str, str]]:
    recorder = Recorder()
    executable = tvm.compile(mod, where, relax_pipeline=pipeline(where, StitchConfig(strict=False), recorder))
    vm = relax.VirtualMachine(executable, tvm.cpu())
    return vm["main"](*[tvm.runtime.tensor(a) for a in arrays]).numpy(), recorder.computed


def check(result: np.ndarray, x: np.ndarray, w: np.ndarray) -> None:
    wide = x.astype("float64") @ w.astype("float64")
    bound = np.abs(x).astype("float64") @ np.abs(w).astype("float64")
    assert result.shape == wide.shape
    assert (np.abs(result - wide) <= 1e-6 * bound + 1e-30).all()


SIZES = [
    (1, 1, 1),
    (1, 64, 33),
    (7, 5, 3),
    (8, 16, 32),
    (13, 17, 19),
    (64, 31, 100),
    (129, 3, 257),
    (131, 600, 517),
    (5, 0, 4),
]


@pytest.mark.parametrize("cpu", TARGETS)
@pytest.mark.parametrize(("m", "k", "n"), SIZES)
def test_a_weight(m: int, k: int, n: int, cpu: str) -> None:
    w = draw(k, n)
    mod = build(lambda emit, x: [R.matmul(x, relax.const(w))], ((m, k), F32))
    x = draw(m, k)
    result, computed = run(mod, target(cpu), x)
    check(result, x, w)
    assert k == 0 or "weight packed" in computed["matmul"]


@pytest.mark.parametrize("depth", [1024, 1025, 3000])
def test_long_sums_are_sums_of_shorter_ones(depth: int) -> None:
    """Ones of float32 that are added one by one to a large number get lost."""
    x, w = np.ones((3, depth), F32), np.full((depth, 5), 2.0**-24, F32)
    w[0] = 1
    mod = build(lambda emit, x: [R.matmul(x, relax.const(w))], (x.shape, F32))
    result, _ = run(mod, target("avx2"), x)
    wide = x.astype("float64") @ w
    small = 256 * 2.0**-24 if depth > 1024 else depth * 2.0**-24
    assert (np.abs(result - wide) <= small + 2.0**-24 * 8).all()


@pytest.mark.parametrize("depth", [0, 1, 255, 257, 2000])
def test_a_symbolic_depth(depth: int) -> None:
    k = symbol("k")
    mod = build(lambda emit, x, w: [R.matmul(x, w)], ((7, k), F32), ((k, 33), F32))
    x, w = draw(7, depth), draw(depth, 33)
    check(run(mod, target("avx2"), x, w)[0], x, w)


def test_a_weight_that_the_graph_transposes() -> None:
    w = draw(37, 24)
    mod = build(lambda emit, x: [R.matmul(x, emit(R.permute_dims(relax.const(w))))], ((2, 9, 24), F32))
    x = draw(2, 9, 24)
    check(run(mod, target("avx2"), x)[0], x, w.T)


@pytest.mark.parametrize("size", [0, 1, 3, 6, 17, 64, 131])
def test_a_weight_behind_symbolic_rows(size: int) -> None:
    w = draw(24, 40)
    mod = build(lambda emit, x: [R.matmul(x, relax.const(w))], ((symbol("b"), symbol("n"), 24), F32))
    x = draw(2, size, 24)
    check(run(mod, target("avx2"), x)[0], x, w)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("b", "m", "k", "n"),
    [(3, 1, 4, 1), (2, 9, 5, 33), (6, 16, 16, 8), (2, 70, 9, 50), (1, 20, 140, 33), (1, 45, 140, 33)],
)
def test_batches(b: int, m: int, k: int, n: int, transposed: bool) -> None:
    x, y = draw(b, m, k), draw(*((b, n, k) if transposed else (b, k, n)))

    def body(emit: Any, x: Any, y: Any) -> list[Any]:
        return [R.matmul(x, emit(R.permute_dims(y, [0, 2, 1])) if transposed else y)]

    mod = build(body, (x.shape, F32), (y.shape, F32))
    result, computed = run(mod, target("avx2"), x, y)
    check(result, x, y.transpose(0, 2, 1) if transposed else y)
    assert any("as it lies" in how for how in computed.values())


@pytest.mark.parametrize("size", [0, 1, 5, 16, 37])
def test_symbolic_extents_everywhere(size: int) -> None:
    b, n = symbol("b"), symbol("n")
    mod = build(lambda emit, x, y: [R.matmul(x, y)], ((b, n, 8), F32), ((b, 8, n), F32))
    x, y = draw(2, size, 8), draw(2, 8, size)
    check(run(mod, target("avx2"), x, y)[0], x, y)


def test_not_a_number_and_infinity_stay() -> None:
    x, w = draw(9, 16), draw(16, 20)
    x[2, 3], x[4, 5] = np.nan, np.inf
    mod = build(lambda emit, x: [R.matmul(x, relax.const(w))], ((9, 16), F32))
    result = run(mod, target("avx2"), x)[0]
    assert np.isnan(result[2]).all() and np.isinf(result[4]).all()
    assert np.isfinite(np.delete(result, [2, 4], 0)).all()


def test_on_request_tvm_computes_it() -> None:
    mod = build(lambda emit, x: [R.matmul(x, relax.const(draw(4, 4)))], ((4, 4), F32))
    recorder = Recorder()
    pipeline("llvm", StitchConfig(compute="tvm"), recorder)(mod)
    assert recorder.computed == {"matmul": "TVM: TVM's schedules are asked for"}


@pytest.mark.parametrize(
    ("name", "compute", "ours"),
    [
        ("filtered", "matmul=tvm", True),  # what it is decides, not what it is called
        ("matmul", "matmul=tvm", True),
        ("conv2d", "matmul=tvm", True),
        ("filtered", "convolution=tvm", False),
        ("matmul", "convolution=tvm", False),
    ],
)
def test_a_convolution_is_one_whatever_its_function_is_called(name: str, compute: str, ours: bool) -> None:
    x, w = draw(1, 8, 8, 4), draw(16, 3, 3, 4)
    layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI"}
    plain = build(lambda emit, x, w: R.nn.conv2d(x, w, padding=1, **layouts), (x.shape, F32), (w.shape, F32))
    func = prim_funcs(legalize(plain))["conv2d"]
    builder = relax.BlockBuilder()
    gvar = builder.add_func(func.without_attr("global_symbol"), name)
    data = relax.Var("x", relax.TensorType(x.shape, F32))
    with builder.function("main", [data]):
        with builder.dataflow():
            called = relax.call_tir(gvar, (data, relax.const(w)), relax.TensorType((1, 8, 8, 16), F32))
            result = builder.emit_output(builder.emit(called))
        builder.emit_func_output(result)
    recorder = Recorder()
    lowered = pipeline(target("avx2"), StitchConfig(compute=compute), recorder)(builder.get())
    assert (f"{name}_tiled" in prim_funcs(lowered)) == ours
    told = recorder.computed[name]
    assert told.startswith("our template") if ours else told == "TVM: TVM's schedules are asked for"


def test_other_dtypes_are_left_to_tvm() -> None:
    w = draw(4, 4).astype("float64")
    mod = build(lambda emit, x: [R.matmul(x, relax.const(w, "float64"))], ((4, 4), "float64"))
    x = draw(4, 4).astype("float64")
    result, computed = run(mod, target("avx2"), x)
    np.testing.assert_allclose(result, x @ w)
    assert computed == {
        "matmul": "TVM: only float32, half types, and bytes added up in int32 have a template"
    }


def test_one_kernel_shared_by_weights() -> None:
    first, second = draw(16, 16), draw(16, 16) + 1

    def body(emit: Any, x: Any) -> list[Any]:
        y = emit(R.matmul(x, relax.const(first)))
        return [R.matmul(y, relax.const(second))]

    mod = build(body, ((4, 16), F32))
    lowered = pipeline("llvm")(mod)
    names = [g.name_hint for g in lowered.get_global_vars()]
    assert sorted(names) == ["main", "matmul_tiled"]
    counted = count_kernels(mod, "llvm", pipeline("llvm"))
    assert (counted.total, counted.memory_intensive) == (2, 0)


@pytest.mark.parametrize(("n", "m"), [(0, 3), (2, 3), (3, 0), (0, 0), (4, 40)])
def test_an_epilogue_of_rows_of_symbolic_length(n: int, m: int) -> None:
    """It takes the whole product, in workspace. No extent that may be 0 is divided by."""
    rows, columns = symbol("n"), symbol("m")
    mod = build(
        lambda emit, x, w: [R.nn.relu(emit(R.matmul(x, w)))], ((rows, rows, 2), F32), ((2, columns), F32)
    )
    x, w = draw(n, n, 2), draw(2, m)
    result, computed = run(mod, target("avx2"), x, w)
    np.testing.assert_allclose(result, np.maximum(x.astype("float64") @ w, 0), rtol=1e-5, atol=1e-5)
    assert computed["fused_matmul_relu"].startswith("our template")


@pytest.mark.parametrize("transposed", [False, True])
def test_a_weight_with_a_leading_axis_of_one(transposed: bool) -> None:
    w = draw(1, 8, 12) if transposed else draw(1, 12, 8)

    def body(emit: Any, x: Any) -> list[Any]:
        right = relax.const(w)
        return [R.matmul(x, emit(R.permute_dims(right, [0, 2, 1])) if transposed else right)]

    x = draw(1, 5, 12)
    result, computed = run(build(body, (x.shape, F32)), target("avx2"), x)
    check(result[0], x[0], w[0].T if transposed else w[0])
    assert any("weight packed" in how for how in computed.values())


def test_a_weight_that_the_epilogue_reads_too() -> None:
    w = draw(16, 16)

    def body(emit: Any, x: Any, v: Any) -> list[Any]:
        weight = relax.const(w)
        return [R.add(emit(R.add(emit(R.matmul(x, weight)), weight)), v)]

    x, v = draw(16, 16), draw(16)
    result, computed = run(build(body, (x.shape, F32), (v.shape, F32)), target("avx2"), x, v)
    np.testing.assert_allclose(result, x.astype("float64") @ w + w + v, rtol=1e-4, atol=1e-4)
    assert all(how.startswith("our template") for how in computed.values())


def test_a_shared_weight_is_packed_once() -> None:
    weight = relax.const(draw(16, 16))
    mod = build(lambda emit, x: [R.matmul(emit(R.matmul(x, weight)), weight)], ((4, 16), F32))
    lowered = pipeline("llvm")(mod)
    found: list[Any] = []

    def visit(e: Any) -> None:
        if isinstance(e, tvm.ir.GenericConst) and isinstance(e.value, tvm.runtime.Tensor):
            found.append(e.value)

    relax.analysis.post_order_visit(lowered["main"], visit)
    assert len(set(found)) == 1 and found[0].shape[2] != 16


@pytest.mark.parametrize("rows", [1, 6, 13, "n"])
def test_what_tvm_fused_to_it_is_computed_behind(rows: Any) -> None:
    w, b = draw(24, 40), draw(40)
    m = symbol("n") if rows == "n" else rows

    def body(emit: Any, x: Any) -> list[Any]:
        y = emit(R.add(emit(R.matmul(x, relax.const(w))), relax.const(b)))
        return [R.nn.relu(y)]

    mod = build(body, ((m, 24), F32))
    x = draw(17 if rows == "n" else rows, 24)
    stock = relax.get_default_pipeline(target("avx2"))
    fused = tvm.transform.Sequential(
        [
            relax.transform.LegalizeOps(),
            relax.transform.FoldConstant(),
            relax.transform.AnnotateTIROpPattern(),
        ]
        + [relax.transform.FuseOps(), relax.transform.FuseTIR(), ComputeTemplates(target("avx2")), stock]
    )
    with target("avx2"):
        vm = relax.VirtualMachine(tvm.compile(mod, target("avx2"), relax_pipeline=fused), tvm.cpu())
    names = [g.name_hint for g in fused(mod).get_global_vars()]
    assert [n for n in names if n.endswith("_tiled")] and len([n for n in names if "shape" not in n]) == 2
    result = vm["main"](tvm.runtime.tensor(x)).numpy()
    wide = np.maximum(x.astype("float64") @ w + b, 0)
    np.testing.assert_allclose(result, wide, rtol=1e-5, atol=1e-5)


def test_the_next_weights_are_fetched() -> None:
    """Tiles that share a block of packed weights bring the one behind it into the cache, an equal share each."""
    x, w = draw(64, 100), draw(100, 48)
    mod = build(lambda emit, x: [R.matmul(x, relax.const(w))], (x.shape, F32))
    lowered = pipeline(target("avx2"))(mod)
    scripts = [f.script() for f in lowered.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    assert sum(script.count("prefetch") for script in scripts) >= 1
    result, _ = run(mod, target("avx2"), x)
    check(result, x, w)
