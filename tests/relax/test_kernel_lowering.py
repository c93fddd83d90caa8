# SPDX-License-Identifier: Apache-2.0
"""CPU kernels of ours lowered without passes that change nothing in them; TVM's own functions as TVM lowers them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.relax import op as R

import tvm_stitch
from tests.graph.helpers import build, draw
from tvm_stitch.config import StitchConfig
from tvm_stitch.relax import kernel_lowering
from tvm_stitch.relax.pipeline import planning_passes
from tvm_stitch.testing.cases import Case, cases
from tvm_stitch.testing.reference import evaluate

F32 = "float32"
LLVM = tvm.target.Target("llvm")
SPECS = [((30, 40), F32), ((40, 24), F32), ((24,), F32)]


@tvm.instrument.pass_instrument
class Names:
    """Keeps for each pass the names of the functions that it was run on."""

    def __init__(self) -> None:
        self.seen: dict[str, list[set[str]]] = {}

    def run_before_pass(self, mod: tvm.IRModule, info: Any) -> None:
        self.seen.setdefault(info.name, []).append({g.name_hint for g in mod.get_global_vars()})


def lowered(mod: tvm.IRModule, name: str) -> tvm.IRModule:
    """What a pipeline of TVM's or ours makes of the functions of a stitched module, before they are split."""
    target = LLVM.with_host(LLVM)
    with target:
        kernels = tvm.transform.Sequential(planning_passes(target, StitchConfig()))(mod)
        funcs = {
            g: f.with_attr("global_symbol", g.name_hint)
            for g, f in kernels.functions_items()
            if isinstance(f, tirx.PrimFunc)
        }
        passes, _, _ = tirx.get_tir_pipeline(name)
        return passes(tirx.transform.BindTarget(target)(tvm.IRModule(funcs)))


def product_norm() -> tvm.IRModule:
    def body(emit: Any, x: Any, w: Any, scale: Any) -> Any:
        y = emit(R.nn.gelu(emit(R.add(emit(R.matmul(x, w)), scale))))
        wide = emit(R.matmul(emit(R.astype(x, "float64")), emit(R.astype(w, "float64"))))  # TVM's
        return [emit(R.nn.layer_norm(y, scale, scale, axes=[-1])), wide]

    return build(body, *SPECS)


@pytest.mark.parametrize("case", cases("test"), ids=lambda case: f"{case.name}{case.sizes}")
def test_the_kernels_are_the_same(case: Case) -> None:
    mod = case.build()
    tvm.ir.assert_structural_equal(
        lowered(mod, kernel_lowering.NAME), lowered(mod, "default"), map_free_vars=True
    )


def test_products_are_the_same_and_only_they_are_spared() -> None:
    mod, names = product_norm(), Names()
    ours, theirs = lowered(mod, kernel_lowering.NAME), lowered(mod, "default")
    tvm.ir.assert_structural_equal(ours, theirs, map_free_vars=True)
    with tvm.transform.PassContext(instruments=[names]):
        lowered(mod, kernel_lowering.NAME)
    whole = names.seen["s_tir.CompactBufferAllocation"][-1]
    assert [name for name in whole if "matmul" in name] == ["matmul1"]
    assert not any("stitch" in name or "tiled" in name for name in whole)
    others = set().union(*names.seen["tirx.VectorizeLoop"])
    assert "matmul1" in others and any("stitch" in name for name in others)


def test_a_model_is_lowered_so_and_right() -> None:
    mod, inputs, names = product_norm(), draw(SPECS), Names()
    with tvm.transform.PassContext(instruments=[names]):
        executable = tvm_stitch.compile(mod, LLVM)
    assert "LowerKernels" in names.seen
    found = tvm.relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, inputs))
    for got, want in zip(found, evaluate(mod, inputs), strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=2e-5, atol=2e-5)


def test_another_pipeline_may_be_given() -> None:
    names = Names()
    with tvm.transform.PassContext(instruments=[names]):
        tvm_stitch.compile(product_norm(), LLVM, tir_pipeline="default")
    assert "LowerKernels" not in names.seen and "s_tir.CompactBufferAllocation" in names.seen
