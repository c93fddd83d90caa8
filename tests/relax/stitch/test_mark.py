# SPDX-License-Identifier: Apache-2.0
"""MergeStitchOps: one PrimFunc for each Primitive function, marked as it was."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax import op as R

from tests.graph.helpers import build, legalize
from tvm_stitch.relax.stitch.mark import EPILOGUE_ATTR, OPAQUE_PATTERN, MergeStitchOps, UnmarkEpilogues
from tvm_stitch.relax.stitch.stitch_ops import STITCH_ATTR, StitchOps

F32 = "float32"


def merged() -> tvm.IRModule:
    def body(emit: Any, x: Any, w: Any) -> Any:
        y = emit(R.matmul(emit(R.exp(emit(R.negative(x)))), w))
        return [R.argmax(emit(R.nn.relu(y)), 1)]

    return MergeStitchOps()(StitchOps()(legalize(build(body, ((4, 8), F32), ((8, 8), F32)))))


def test_each_primitive_function_becomes_one_prim_func() -> None:
    mod = merged()
    assert relax.analysis.check_well_formed(mod)
    functions = {g.name_hint: f for g, f in mod.functions_items()}
    assert [n for n, f in functions.items() if isinstance(f, relax.Function)] == ["main"]
    (stitch,) = [n for n in functions if n.startswith("stitch")]
    (fused,) = [n for n in functions if n.startswith("fused")]
    assert STITCH_ATTR in functions[stitch].attrs and STITCH_ATTR not in functions[fused].attrs
    for name in (stitch, fused):
        assert functions[name].attrs["op_pattern"] == OPAQUE_PATTERN


def test_epilogues_become_what_tvms_fusion_makes_of_them() -> None:
    before = {g.name_hint: f for g, f in merged().functions_items()}
    after = {g.name_hint: f for g, f in UnmarkEpilogues()(merged()).functions_items()}
    for name, func in before.items():
        gone = {"op_pattern", EPILOGUE_ATTR} if name.startswith("fused") else set()
        attrs = set(func.attrs.keys()) if func.attrs else set()
        assert set(after[name].attrs.keys() if after[name].attrs else ()) == attrs - gone and gone <= attrs


def test_fuse_ops_takes_nothing_into_a_stitch_op() -> None:
    mod = merged()
    after = relax.transform.FuseTIR()(relax.transform.FuseOps()(mod))
    before = {g.name_hint for g, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)}
    assert {g.name_hint for g, f in after.functions_items() if isinstance(f, tirx.PrimFunc)} == before
