# SPDX-License-Identifier: Apache-2.0
"""StitchOps before and after: what is outlined, and that the module stays well-formed."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as Rop
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from tests.graph.helpers import build, legalize
from tvm_stitch.config import StitchConfig
from tvm_stitch.relax.stitch_ops import STITCH_ATTR, StitchOps
from tvm_stitch.scope.identify import Boundary
from tvm_stitch.testing.random_graphs import random_graph

F32 = "float32"


def run(mod: tvm.IRModule, **options: Any) -> tvm.IRModule:
    result = StitchOps(StitchConfig(**options))(mod)
    assert relax.analysis.check_well_formed(result)
    return result


def outlined(mod: tvm.IRModule) -> dict[str, list[str]]:
    """The functions called by each stitch op."""
    found = {}
    for gvar, func in mod.functions_items():
        if isinstance(func, relax.Function) and func.attrs and STITCH_ATTR in func.attrs:
            assert func.attrs["Primitive"]
            calls: list[str] = []
            relax.analysis.post_order_visit(
                func,
                lambda e, calls=calls: (
                    calls.append(e.args[0].name_hint)
                    if isinstance(e, relax.Call) and getattr(e.op, "name", "") == "relax.call_tir"
                    else None
                ),
            )
            found[gvar.name_hint] = calls
    return found


def main_calls(mod: tvm.IRModule, name: str = "main") -> list[str]:
    """What ``main`` calls, in order."""
    calls = []
    for block in mod[name].body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.Call):
                inner = value.op if isinstance(value.op, tvm.ir.GlobalVar) else value.args[0]
                calls.append(getattr(inner, "name_hint", str(value.op)))
    return calls


PIECES = """
@T.prim_func(private=True, s_tir=True)
def exp(x: T.Buffer((T.int64(4), T.int64(8)), "float32"), y: T.Buffer((T.int64(4), T.int64(8)), "float32")):
    for i, j in T.grid(T.int64(4), T.int64(8)):
        with T.sblock("exp"):
            v, w = T.axis.remap("SS", [i, j])
            y[v, w] = T.exp(x[v, w])

@T.prim_func(private=True, s_tir=True)
def add(x: T.Buffer((T.int64(4), T.int64(8)), "float32"), y: T.Buffer((T.int64(4), T.int64(8)), "float32"),
        z: T.Buffer((T.int64(4), T.int64(8)), "float32")):
    for i, j in T.grid(T.int64(4), T.int64(8)):
        with T.sblock("add"):
            v, w = T.axis.remap("SS", [i, j])
            z[v, w] = x[v, w] + y[v, w]

@T.prim_func(private=True, s_tir=True)
def total(x: T.Buffer((T.int64(4), T.int64(8)), "float32"), y: T.Buffer((T.int64(4), T.int64(1)), "float32")):
    for i, j, k in T.grid(T.int64(4), T.int64(1), T.int64(8)):
        with T.sblock("total"):
            v, w, r = T.axis.remap("SSR", [i, j, k])
            with T.init():
                y[v, w] = T.float32(0)
            y[v, w] = y[v, w] + x[v, r]

@T.prim_func(private=True, s_tir=True)
def divide(x: T.Buffer((T.int64(4), T.int64(8)), "float32"), y: T.Buffer((T.int64(4), T.int64(1)), "float32"),
           z: T.Buffer((T.int64(4), T.int64(8)), "float32")):
    for i, j in T.grid(T.int64(4), T.int64(8)):
        with T.sblock("divide"):
            v, w = T.axis.remap("SS", [i, j])
            z[v, w] = x[v, w] / y[v, T.int64(0)]

@T.prim_func(private=True, s_tir=True)
def halves(x: T.Buffer((T.int64(4), T.int64(8)), "float32"), y: T.Buffer((T.int64(4), T.int64(8)), "float32"),
           z: T.Buffer((T.int64(4), T.int64(8)), "float32")):
    for i, j in T.grid(T.int64(4), T.int64(8)):
        with T.sblock("twice"):
            v, w = T.axis.remap("SS", [i, j])
            y[v, w] = x[v, w] * T.float32(2)
    for i, j in T.grid(T.int64(4), T.int64(8)):
        with T.sblock("half"):
            v, w = T.axis.remap("SS", [i, j])
            z[v, w] = x[v, w] * T.float32(0.5)

@T.prim_func(private=True, s_tir=True)
def matmul(x: T.Buffer((T.int64(4), T.int64(8)), "float32"), y: T.Buffer((T.int64(8), T.int64(8)), "float32"),
           z: T.Buffer((T.int64(4), T.int64(8)), "float32")):
    for i, j, k in T.grid(T.int64(4), T.int64(8), T.int64(8)):
        with T.sblock("matmul"):
            v, w, r = T.axis.remap("SSR", [i, j, k])
            with T.init():
                z[v, w] = T.float32(0)
            z[v, w] = z[v, w] + x[v, r] * y[r, w]
"""


def script(text: str) -> tvm.IRModule:
    """A module of the pieces and of Relax functions in TVMScript; ROW, FULL and MATRIX are types of tensors."""
    names = {
        "ROW": 'R.Tensor((4, 1), "float32")',
        "FULL": 'R.Tensor((4, 8), "float32")',
        "MATRIX": 'R.Tensor((8, 8), "float32")',
        "STITCHED": f'{{"Primitive": True, "{STITCH_ATTR}": True}}',
    }
    text = textwrap.dedent(text)
    for name, meaning in names.items():
        text = text.replace(name, meaning)
    body = textwrap.indent(PIECES + text, "    ")
    return tvm.script.from_source(f"@I.ir_module\nclass Module:\n{body}", extra_vars={"I": I, "T": T, "R": R})


def check(before: str, after: str, **options: Any) -> None:
    tvm.ir.assert_structural_equal(run(script(before), **options), script(after))


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
    scopes: dict[str, str] = {}
    StitchOps(scopes=scopes)(before)
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
    scopes: dict[str, str] = {}
    mod = script(DIAMOND)
    config = StitchConfig(epilogues=False)
    StitchOps(config, scopes=scopes)(mod)
    assert len(scopes) == 2
    name, text = sorted(scopes.items())[0]
    after = StitchOps(config, exclude={text})(mod)
    assert relax.analysis.check_well_formed(after)
    assert name not in outlined(after) and len(outlined(after)) == 1


def test_boundaries_are_told() -> None:
    boundaries: list[Boundary] = []
    StitchOps(StitchConfig(epilogues=False), boundaries)(script(DIAMOND))
    assert {b.reason for b in boundaries} >= {"compute-intensive"}
    assert any("cycle" in b.reason for b in boundaries)


# -- whole models, built from Relax operators ---------------------------------------------------------------------


def test_constants_are_arguments() -> None:
    table = np.arange(32, dtype=F32).reshape(4, 8)
    mod = legalize(build(lambda emit, x: Rop.exp(emit(Rop.add(x, relax.const(table)))), ((4, 8), F32)))
    after = run(mod)
    (calls,) = outlined(after).values()
    assert len(calls) == 2
    (call,) = [
        b.value for blk in after["main"].body.blocks for b in blk.bindings if isinstance(b.value, relax.Call)
    ]
    assert [type(a).__name__ for a in call.args].count("Var") == 1 and len(call.args) == 2
    np.testing.assert_array_equal(call.args[1].value.numpy(), table)


def test_split_and_scalars() -> None:
    def body(emit: Any, x: Any, s: Any) -> Any:
        parts = emit(Rop.split(x, 2, 1))
        a, b = emit(relax.TupleGetItem(parts, 0)), emit(relax.TupleGetItem(parts, 1))
        return [Rop.add(emit(Rop.multiply(a, s)), b), Rop.exp(b)]

    after = run(legalize(build(body, ((4, 8), F32), ((), F32))))
    assert len(outlined(after)) == 1 and len(main_calls(after)) == 1


def test_reshapes_at_a_border_stay_views() -> None:
    def body(emit: Any, x: Any, w: Any) -> Any:
        y = emit(Rop.reshape(emit(Rop.exp(x)), (8, 4)))
        z = emit(Rop.reshape(emit(Rop.matmul(y, w)), (2, 16)))
        return [Rop.multiply(z, emit(Rop.sum(z, -1, True)))]

    after = run(legalize(build(body, ((4, 8), F32), ((4, 4), F32))))
    # Behind exp it is left to TVM; in front of the sum it is an index map of the kernel, which costs nothing either.
    assert sorted(map(len, outlined(after).values())) == [1, 3]
    views = [c for c in main_calls(after) if "reshape" in c and "stitch" not in c]
    assert len(views) == 1 and "relax.reshape" in views[0]


def test_bias_and_activation_after_a_matmul() -> None:
    def body(emit: Any, x: Any, w: Any, b: Any) -> Any:
        return [Rop.nn.relu(emit(Rop.add(emit(Rop.matmul(x, w)), b)))]

    after = run(legalize(build(body, ((4, 8), F32), ((8, 16), F32), ((16,), F32))))
    assert outlined(after) == {} and len(main_calls(after)) == 1


def test_symbolic_shapes() -> None:
    n = tvm.tirx.Var("n", "int64")

    def body(emit: Any, x: Any) -> Any:
        e = emit(Rop.exp(emit(Rop.subtract(x, emit(Rop.max(x, -1, True))))))
        return [Rop.divide(e, emit(Rop.sum(e, -1, True)))]

    after = run(legalize(build(body, ((n, 8), F32))))
    assert len(outlined(after)) == 1 and len(main_calls(after)) == 1


def test_symbols_that_no_tensor_argument_carries_are_passed() -> None:
    n = tvm.tirx.Var("n", "int64")

    def body(emit: Any, x: Any, y: Any) -> Any:
        flat = emit(Rop.reshape(y, (4 * n,)))
        return [Rop.exp(emit(Rop.add(flat, emit(Rop.sum(x)))))]

    run(legalize(build(body, ((3,), F32), ((n, 4), F32))))

    def spread(emit: Any, x: Any, y: Any) -> Any:
        return [Rop.broadcast_to(emit(Rop.exp(x)), (n, 3)), Rop.exp(y)]

    after = run(legalize(build(spread, ((1, 3), F32), ((n, 4), F32))), remote=False)
    assert any("broadcast_to" in c for calls in outlined(after).values() for c in calls)


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_random_graphs_stay_well_formed(first: int) -> None:
    for seed in range(first, first + 10):
        after = run(legalize(random_graph(seed, max_elements=500).mod))
        assert outlined(after)
