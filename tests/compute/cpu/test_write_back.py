# SPDX-License-Identifier: Apache-2.0
"""Epilogues are computed tile by tile where they can be, and right where they cannot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.script import tirx as T

from tvm_stitch import compat
from tvm_stitch.compute.anchored import anchored
from tvm_stitch.compute.cpu.write_back import EpilogueWriteBack, write_back
from tvm_stitch.config import StitchConfig
from tvm_stitch.device import device_model
from tvm_stitch.graph.reader import read
from tvm_stitch.records.decisions import decisions_of
from tvm_stitch.relax.stitch.compute_templates import ComputeTemplates
from tvm_stitch.support.failures import Refusal

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "haswell"})


@T.prim_func(s_tir=True)
def with_a_residual(
    x: T.Buffer((9, 8), "float32"), w: T.Buffer((8, 21), "float32"), r: T.Buffer((9, 21), "float32"),
    b: T.Buffer((21,), "float32"), y: T.Buffer((9, 21), "float32"), z: T.Buffer((9, 21), "float32"),
):  # fmt: skip
    for i, n, k in T.grid(9, 21, 8):
        with T.sblock("product"):
            vi, vn, vk = T.axis.remap("SSR", [i, n, k])
            with T.init():
                y[vi, vn] = T.float32(0)
            y[vi, vn] = y[vi, vn] + x[vi, vk] * w[vk, vn]
    for i, n in T.grid(9, 21):
        with T.sblock("end"):
            vi, vn = T.axis.remap("SS", [i, n])
            z[vi, vn] = T.exp(y[vi, vn] * T.float32(0.1) + b[vn]) + r[vi, vn]


@T.prim_func(s_tir=True)
def transposed_behind(
    x: T.Buffer((9, 8), "float32"), w: T.Buffer((8, 21), "float32"), z: T.Buffer((21, 9), "float32")
):
    y = T.sblock_alloc_buffer((9, 21))
    for i, n, k in T.grid(9, 21, 8):
        with T.sblock("product"):
            vi, vn, vk = T.axis.remap("SSR", [i, n, k])
            with T.init():
                y[vi, vn] = T.float32(0)
            y[vi, vn] = y[vi, vn] + x[vi, vk] * w[vk, vn]
    for n, i in T.grid(21, 9):
        with T.sblock("end"):
            vn, vi = T.axis.remap("SS", [n, i])
            z[vn, vi] = T.exp(y[vi, vn])


@T.prim_func(s_tir=True)
def shifted_behind(
    x: T.Buffer((9, 8), "float32"), w: T.Buffer((8, 21), "float32"), z: T.Buffer((9, 21), "float32")
):
    y = T.sblock_alloc_buffer((9, 21))
    for i, n, k in T.grid(9, 21, 8):
        with T.sblock("product"):
            vi, vn, vk = T.axis.remap("SSR", [i, n, k])
            with T.init():
                y[vi, vn] = T.float32(0)
            y[vi, vn] = y[vi, vn] + x[vi, vk] * w[vk, vn]
    for i, n in T.grid(T.int64(9), T.int64(21)):
        with T.sblock("end"):
            vi, vn = T.axis.remap("SS", [i, n])
            z[vi, vn] = y[vi, vn] + y[T.int64(8) - vi, vn]


@T.prim_func(s_tir=True)
def reduced_behind(
    x: T.Buffer((9, 8), "float32"), w: T.Buffer((8, 21), "float32"), z: T.Buffer((9,), "float32")
):
    y = T.sblock_alloc_buffer((9, 21))
    for i, n, k in T.grid(9, 21, 8):
        with T.sblock("product"):
            vi, vn, vk = T.axis.remap("SSR", [i, n, k])
            with T.init():
                y[vi, vn] = T.float32(0)
            y[vi, vn] = y[vi, vn] + x[vi, vk] * w[vk, vn]
    for i, n in T.grid(9, 21):
        with T.sblock("end"):
            vi, vn = T.axis.remap("SR", [i, n])
            with T.init():
                z[vi] = T.float32(0)
            z[vi] = z[vi] + y[vi, vn]


def computed_by_template(func: Any, *arrays: np.ndarray) -> tvm.IRModule:
    """Return a module that calls the function, which its template computes."""
    outputs = len(func.params) - len(arrays)
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(a.shape, "float32")) for i, a in enumerate(arrays)]
    types = [relax.TensorType(p.shape, "float32") for p in func.params[-outputs:]]
    gvar = builder.add_func(func.without_attr("global_symbol"), "product")
    with builder.function("main", params):
        with builder.dataflow():
            made = builder.emit(relax.call_tir(gvar, params, types if outputs > 1 else types[0]))
            items = [made] if outputs == 1 else [builder.emit(made[i]) for i in range(outputs)]
            kept = [builder.emit_output(item) for item in items]
        builder.emit_func_output(relax.Tuple(kept))
    mod = ComputeTemplates(TARGET)(builder.get())
    computed = decisions_of(mod).computed
    assert computed["product"].startswith("our template"), computed
    return mod


def results(func: Any, *arrays: np.ndarray) -> list[np.ndarray]:
    """Return the module's results."""
    mod = computed_by_template(func, *arrays)
    vm = relax.VirtualMachine(tvm.compile(mod, TARGET), tvm.cpu())
    return [r.numpy() for r in vm["main"](*map(tvm.runtime.tensor, arrays))]


def operands() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((9, 8)).astype("float32"), rng.standard_normal((8, 21)).astype("float32")
    return x, w, x.astype("float64") @ w


def tiled(func: Any) -> bool:
    found = anchored(read(func, "f"))
    assert found.epilogue is not None
    p, device = found.product, device_model(TARGET, StitchConfig())
    try:
        out = write_back(found.epilogue, p.output, found.rows, p.columns, device, False)
    except Refusal:
        return False
    return isinstance(out, EpilogueWriteBack)


def test_a_product_that_is_a_result_too() -> None:
    x, w, wide = operands()
    rng = np.random.default_rng(1)
    r, b = rng.standard_normal((9, 21)).astype("float32"), rng.standard_normal(21).astype("float32")
    y, z = results(with_a_residual, x, w, r, b)
    np.testing.assert_allclose(y, wide, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(z, np.exp(wide * 0.1 + b) + r, rtol=1e-5, atol=1e-5)
    assert tiled(with_a_residual)


def test_what_a_tile_reads_and_writes_is_fetched() -> None:
    """The added tensor and both results are fetched. The bias is not, since all rows have it in common."""
    x, w, _ = operands()
    mod = computed_by_template(with_a_residual, x, w, np.zeros((9, 21), "float32"), np.zeros(21, "float32"))
    calls: list[Any] = []
    tvm_ffi.structural_walk(mod["product_tiled"].body, (tvm.ir.Call, calls.append), order="post")
    addresses = [call.args[0] for call in calls if getattr(call.op, "name", "") == "tirx.prefetch"]
    fetched = {compat.load_buffer(address.args[0]).name for address in addresses}
    assert fetched == {"r_flat", "y_flat", "z_flat"}


@pytest.mark.parametrize(
    ("func", "meaning", "by_tiles"),
    [
        (transposed_behind, lambda y: np.exp(y).T, True),
        (shifted_behind, lambda y: y + y[::-1], False),
        (reduced_behind, lambda y: y.sum(1), False),
    ],
)
def test_what_follows(func: Any, meaning: Any, by_tiles: bool) -> None:
    x, w, wide = operands()
    (z,) = results(func, x, w)
    np.testing.assert_allclose(z, meaning(wide), rtol=1e-5, atol=1e-5)
    assert tiled(func) == by_tiles
