# SPDX-License-Identifier: Apache-2.0
"""Modules for tests of StitchOps, written in a few tensor functions, and the results of the pass."""

from __future__ import annotations

import textwrap
from typing import Any

import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from tvm_stitch.config import StitchConfig
from tvm_stitch.records.decisions import without_decisions
from tvm_stitch.relax.stitch.stitch_ops import STITCH_ATTR, StitchOps


def run(mod: tvm.IRModule, **options: Any) -> tvm.IRModule:
    result = without_decisions(StitchOps(StitchConfig(**options))(mod))
    assert relax.analysis.check_well_formed(result)
    return result


def outlined(mod: tvm.IRModule) -> dict[str, list[str]]:
    """Return the functions called by each stitch op."""
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
    """Return the names of the calls of ``main``, in order."""
    calls = []
    for block in mod[name].body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.Call):
                inner = value.op if isinstance(value.op, tvm.ir.GlobalVar) else value.args[0]
                calls.append(getattr(inner, "name_hint", str(value.op)))
    return calls


def operators(mod: tvm.IRModule) -> list[str]:
    """Return the names of the operators that ``main`` calls, without ``relax.``, in order."""
    found: list[str] = []

    def visit(e: Any) -> None:
        if isinstance(e, relax.Call) and hasattr(e.op, "name"):
            found.append(e.op.name.removeprefix("relax."))

    relax.analysis.post_order_visit(mod["main"], visit)
    return found


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
    """Return a module of the pieces and of Relax functions in TVMScript. ROW, FULL and MATRIX are types of tensors."""
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
