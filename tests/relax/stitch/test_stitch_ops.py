# SPDX-License-Identifier: Apache-2.0
"""StitchOps before and after: what is outlined, and that the module stays well-formed."""

from __future__ import annotations

import re
from typing import Any

import tvm
from tvm import relax
from tvm.relax import op

from tests.graph.helpers import build, prim_funcs
from tests.relax.modules import check, main_calls, outlined, run, script
from tvm_stitch.config import StitchConfig
from tvm_stitch.records.decisions import decisions_of
from tvm_stitch.relax.pipeline import planning_passes
from tvm_stitch.relax.stitch.stitch_ops import StitchOps

F32 = "float32"
LLVM = tvm.target.Target("llvm")


def test_softmax() -> None:
    check(
        """
        @R.function
        def main(x: FULL):
            cls = Module
            with R.dataflow():
                a = R.call_tir(cls.exp, (x,), FULL)
                b = R.call_tir(cls.total, (a,), ROW)
                c = R.call_tir(cls.divide, (a, b), FULL)
                R.output(c)
            return c
        """,
        """
        @R.function(private=True)
        def stitch_exp_total_divide(x: FULL) -> FULL:
            R.func_attr(STITCHED)
            cls = Module
            with R.dataflow():
                a = R.call_tir(cls.exp, (x,), FULL)
                b = R.call_tir(cls.total, (a,), ROW)
                c = R.call_tir(cls.divide, (a, b), FULL)
                R.output(c)
            return c

        @R.function
        def main(x: FULL):
            cls = Module
            with R.dataflow():
                c: FULL = cls.stitch_exp_total_divide(x)
                R.output(c)
            return c
        """,
    )


def test_two_outputs_one_used_outside_the_block() -> None:
    check(
        """
        @R.function
        def main(x: FULL):
            cls = Module
            with R.dataflow():
                a = R.call_tir(cls.exp, (x,), FULL)
                b = R.call_tir(cls.total, (a,), ROW)
                c = R.call_tir(cls.divide, (a, b), FULL)
                R.output(a, c)
            return (a, c)
        """,
        """
        @R.function(private=True)
        def stitch_exp_total_divide(x: FULL) -> R.Tuple(FULL, FULL):
            R.func_attr(STITCHED)
            cls = Module
            with R.dataflow():
                a = R.call_tir(cls.exp, (x,), FULL)
                b = R.call_tir(cls.total, (a,), ROW)
                c = R.call_tir(cls.divide, (a, b), FULL)
                R.output(a, c)
            return (a, c)

        @R.function
        def main(x: FULL):
            cls = Module
            with R.dataflow():
                r: R.Tuple(FULL, FULL) = cls.stitch_exp_total_divide(x)
                a: FULL = r[0]
                c: FULL = r[1]
                R.output(a, c)
            return (a, c)
        """,
    )


def test_a_matmul_in_the_middle() -> None:
    check(
        """
        @R.function
        def main(x: FULL, w: MATRIX):
            cls = Module
            with R.dataflow():
                a = R.call_tir(cls.exp, (x,), FULL)
                m = R.call_tir(cls.matmul, (a, w), FULL)
                b = R.call_tir(cls.total, (m,), ROW)
                c = R.call_tir(cls.divide, (m, b), FULL)
                R.output(c)
            return c
        """,
        """
        @R.function(private=True)
        def stitch_exp(x: FULL) -> FULL:
            R.func_attr(STITCHED)
            cls = Module
            with R.dataflow():
                a = R.call_tir(cls.exp, (x,), FULL)
                R.output(a)
            return a

        @R.function(private=True)
        def stitch_total_divide(m: FULL) -> FULL:
            R.func_attr(STITCHED)
            cls = Module
            with R.dataflow():
                b = R.call_tir(cls.total, (m,), ROW)
                c = R.call_tir(cls.divide, (m, b), FULL)
                R.output(c)
            return c

        @R.function
        def main(x: FULL, w: MATRIX):
            cls = Module
            with R.dataflow():
                a: FULL = cls.stitch_exp(x)
                m = R.call_tir(cls.matmul, (a, w), FULL)
                c: FULL = cls.stitch_total_divide(m)
                R.output(c)
            return c
        """,
    )


DIAMOND = """
@R.function
def main(x: FULL, w: MATRIX):
    cls = Module
    with R.dataflow():
        a = R.call_tir(cls.exp, (x,), FULL)
        m = R.call_tir(cls.matmul, (a, w), FULL)
        b = R.call_tir(cls.total, (a,), ROW)
        c = R.call_tir(cls.divide, (m, b), FULL)
        R.output(c)
    return c
"""


def test_a_diamond_around_a_matmul_makes_no_cycle() -> None:
    after = run(script(DIAMOND), epilogues=False)
    found = outlined(after)
    assert sorted(f for calls in found.values() for f in calls) == ["divide", "exp", "total"]
    assert not any({"exp", "divide"} <= set(calls) for calls in found.values())
    assert main_calls(after)[1] == "matmul" and len(main_calls(after)) == 3


def test_two_results_of_one_call() -> None:
    check(
        """
        @R.function
        def main(x: FULL):
            cls = Module
            with R.dataflow():
                a = R.call_tir(cls.exp, (x,), FULL)
                p = R.call_tir(cls.halves, (a,), [FULL, FULL])
                u: FULL = p[0]
                v: FULL = p[1]
                c = R.call_tir(cls.add, (u, v), FULL)
                R.output(v, c)
            return (v, c)
        """,
        """
        @R.function(private=True)
        def stitch_exp_halves_add(x: FULL) -> R.Tuple(FULL, FULL):
            R.func_attr(STITCHED)
            cls = Module
            with R.dataflow():
                a = R.call_tir(cls.exp, (x,), FULL)
                p = R.call_tir(cls.halves, (a,), [FULL, FULL])
                u: FULL = p[0]
                v: FULL = p[1]
                c = R.call_tir(cls.add, (u, v), FULL)
                R.output(v, c)
            return (v, c)

        @R.function
        def main(x: FULL):
            cls = Module
            with R.dataflow():
                r: R.Tuple(FULL, FULL) = cls.stitch_exp_halves_add(x)
                v: FULL = r[0]
                c: FULL = r[1]
                R.output(v, c)
            return (v, c)
        """,
    )


def test_a_call_whose_results_are_used_as_one_tuple_is_left() -> None:
    after = run(
        script(
            """
            @R.function
            def main(x: FULL):
                cls = Module
                with R.dataflow():
                    a = R.call_tir(cls.exp, (x,), FULL)
                    p = R.call_tir(cls.halves, (a,), [FULL, FULL])
                    R.output(p)
                return p
            """
        )
    )
    assert outlined(after) == {"stitch_exp": ["exp"]} and main_calls(after) == ["stitch_exp", "halves"]


def test_several_dataflow_blocks() -> None:
    after = run(
        script(
            """
            @R.function(pure=False)
            def main(x: FULL):
                cls = Module
                with R.dataflow():
                    a = R.call_tir(cls.exp, (x,), FULL)
                    b = R.call_tir(cls.exp, (a,), FULL)
                    R.output(b)
                u = R.call_packed("some.function", b, ty_args=(FULL,))
                with R.dataflow():
                    t = R.call_tir(cls.total, (u,), ROW)
                    c = R.call_tir(cls.divide, (b, t), FULL)
                    R.output(c)
                return c
            """
        )
    )
    assert outlined(after) == {"stitch_exp_exp": ["exp", "exp"], "stitch_total_divide": ["total", "divide"]}


def test_results_of_a_call_that_is_left_keep_their_names() -> None:
    """A call with two results, one of them returned, whose scope is excluded."""
    before = script(
        """
        @R.function
        def main(x: FULL):
            cls = Module
            with R.dataflow():
                p = R.call_tir(cls.halves, (x,), [FULL, FULL])
                u: FULL = p[0]
                v: FULL = p[1]
                c = R.call_tir(cls.add, (u, v), FULL)
                R.output(v, c)
            return (v, c)
        """
    )
    scopes = decisions_of(StitchOps()(before)).outlined
    after = StitchOps(exclude=set(scopes.values()))(before)
    assert relax.analysis.check_well_formed(after) and outlined(after) == {}
    tvm.ir.assert_structural_equal(after["main"].ret_ty, before["main"].ret_ty)
    assert main_calls(after) == ["halves", "add"]


def test_a_result_with_two_names() -> None:
    after = run(
        script(
            """
            @R.function
            def main(x: FULL):
                cls = Module
                with R.dataflow():
                    p = R.call_tir(cls.halves, (x,), [FULL, FULL])
                    u: FULL = p[0]
                    v: FULL = p[0]
                    w: FULL = p[1]
                    c = R.call_tir(cls.add, (u, v), FULL)
                    R.output(u, w, c)
                return (u, w, c)
            """
        )
    )
    assert main_calls(after) == ["halves", "stitch_add"]


def test_every_function_of_a_module() -> None:
    after = run(
        script(
            """
            @R.function(private=True)
            def inner(x: FULL) -> FULL:
                cls = Module
                with R.dataflow():
                    a = R.call_tir(cls.exp, (x,), FULL)
                    b = R.call_tir(cls.exp, (a,), FULL)
                    R.output(b)
                return b

            @R.function
            def main(x: FULL):
                cls = Module
                with R.dataflow():
                    a: FULL = cls.inner(x)
                    b: FULL = cls.inner(a)
                    c = R.call_tir(cls.add, (a, b), FULL)
                    R.output(c)
                return c
            """
        )
    )
    found = outlined(after)
    assert sorted(map(tuple, found.values())) == [("add",), ("exp", "exp")]
    assert main_calls(after)[:2] == ["inner", "inner"]


def test_what_is_primitive_already_is_left() -> None:
    before = script(
        """
        @R.function(private=True)
        def fused(x: FULL) -> FULL:
            R.func_attr({"Primitive": True})
            cls = Module
            with R.dataflow():
                a = R.call_tir(cls.exp, (x,), FULL)
                b = R.call_tir(cls.exp, (a,), FULL)
                R.output(b)
            return b

        @R.function
        def main(x: FULL):
            cls = Module
            with R.dataflow():
                a: FULL = cls.fused(x)
                R.output(a)
            return a
        """
    )
    tvm.ir.assert_structural_equal(run(before), before)


def test_bindings_outside_dataflow_blocks_are_left() -> None:
    before = script(
        """
        @R.function
        def main(x: FULL):
            cls = Module
            a = R.call_tir(cls.exp, (x,), FULL)
            return a
        """
    )
    tvm.ir.assert_structural_equal(run(before), before)


def test_epilogues_go_with_their_matmul_unmarked() -> None:
    before = """
    @R.function
    def main(x: FULL, w: MATRIX):
        cls = Module
        with R.dataflow():
            m = R.call_tir(cls.matmul, (x, w), FULL)
            a = R.call_tir(cls.exp, (m,), FULL)
            R.output(a)
        return a
    """
    after = run(script(before))
    assert outlined(after) == {} and main_calls(after) == ["fused_matmul_exp"]
    assert dict(after["fused_matmul_exp"].attrs) == {"Primitive": True}
    assert outlined(run(script(before), epilogues=False)) == {"stitch_exp": ["exp"]}


def test_excluded_scopes_are_left_and_named() -> None:
    mod = script(DIAMOND)
    config = StitchConfig(epilogues=False)
    scopes = decisions_of(StitchOps(config)(mod)).outlined
    assert len(scopes) == 2
    name, text = sorted(scopes.items())[0]
    after = StitchOps(config, exclude={text})(mod)
    assert relax.analysis.check_well_formed(after)
    assert name not in outlined(after) and len(outlined(after)) == 1


def test_boundaries_are_told() -> None:
    boundaries = decisions_of(StitchOps(StitchConfig(epilogues=False))(script(DIAMOND))).boundaries
    assert {b.reason for b in boundaries} >= {"compute-intensive"}
    assert any("cycle" in b.reason for b in boundaries)


def test_casts_between_floats_name_no_kernel() -> None:
    """Unless there is nothing else: a kernel of a half type is called what it is called in float32."""

    def norm(emit: Any, x: Any, scale: Any) -> list[Any]:
        wide = emit(op.astype(x, F32))
        normal = emit(op.nn.layer_norm(emit(op.add(wide, wide)), scale, scale, axes=[-1]))
        return [op.astype(emit(op.nn.relu(normal)), "float16")]

    def casts(emit: Any, x: Any, mask: Any) -> list[Any]:
        return [op.astype(emit(op.astype(x, F32)), "bfloat16"), op.astype(mask, F32)]

    def names(mod: tvm.IRModule) -> set[str]:
        planned = tvm.transform.Sequential(planning_passes(LLVM, StitchConfig(horizontal_fusion=False)))
        with LLVM:
            return {re.sub(r"\d", "", name) for name in prim_funcs(planned(mod)) if "stitch" in name}

    half = build(norm, ((8, 64), "float16"), ((64,), F32))
    assert names(half) == {"stitch_add_layer_norm_relu"}
    assert names(build(casts, ((8, 64), "float16"), ((8, 64), "bool"))) == {"stitch_cast_cast", "stitch_cast"}
