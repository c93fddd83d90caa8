# SPDX-License-Identifier: Apache-2.0
"""Divisions by symbols truncate where nothing is negative, and nowhere else."""

from __future__ import annotations

import re
from typing import Any

import pytest
import tvm
from tvm.relax import op as R

from tests.graph.helpers import build, single, symbol
from tests.repairs import faults
from tvm_stitch import compat
from tvm_stitch.compat import tir
from tvm_stitch.relax import pipeline
from tvm_stitch.repairs.tir.truncated import signed_symbols, truncated

I, J, N = (tir.Var(name, "int64") for name in "ijn")
D, M = tir.floordiv, tir.floormod


@pytest.mark.parametrize(
    "before, after",
    [
        (D(I + J, N), tir.truncdiv(I + J, N)),
        (M(D(I * N + J, N + 1), N), tir.truncmod(tir.truncdiv(I * N + J, N + 1), N)),
        (D(I - M(I, 32) + J, N), tir.truncdiv(I - M(I, 32) + J, N)),
        (D(I - 1, N), None), (D(I, N - 1), None), (M(J - I, N), None), (D(I, 7), None), (D(I - M(J, 32), N), None),
    ],
    ids=str,
)  # fmt: skip
def test_divisions(before: Any, after: Any) -> None:
    assert compat.structural_equal(truncated(before, ()), before if after is None else after)


def test_what_may_be_negative_is_left() -> None:
    e = D(I, N)
    assert compat.structural_equal(truncated(e, {I}), e) and compat.structural_equal(truncated(e, {N}), e)


def test_symbols_of_shapes_are_not_negative() -> None:
    n = symbol("n")
    graph = single(lambda emit, x: R.reshape(x, (n * 2, 4)), ((n, 8), "float32"))
    assert not signed_symbols(graph)
    for op in graph.operators:
        op.value = op.value + compat.const(1.0, "float32") * tir.Cast("float32", N)
    assert signed_symbols(graph) == {N}


def test_a_kernel_of_symbols_divides_once() -> None:
    n, m = symbol("n"), symbol("m")

    def body(emit: Any, x: Any) -> Any:
        return [emit(R.permute_dims(emit(R.reshape(emit(R.exp(x)), (n * 2, m))), [1, 0]))]

    mod = pipeline("llvm")(build(body, ((n, 2, m), "float32")))
    text = "".join(f.script() for g, f in mod.functions.items() if g.name_hint.startswith("stitch"))
    assert "T.Div(" in text and "T.truncmod(" in text
    assert not re.search(r"(//|%) \(?[nm]\b", text), "of symbols, none floors"


def lowered_length(e: Any) -> int:
    """Return the length of an expression's text behind TVM's lowering of divisions."""
    func = tir.PrimFunc([I, J, N], tir.Evaluate(e)).with_attr("target", faults.LLVM)
    return len(tir.transform.LowerIntrin()(tvm.IRModule({"main": func}))["main"].script())


def test_fault() -> None:
    nested = D(D(D(I, N), J), N + J)
    faults.needed(lowered_length(nested) > 3 * lowered_length(D(I, N)), "tir/truncated.py")


def test_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    n, m = symbol("n"), symbol("m")

    def floors() -> bool:
        def body(emit: Any, x: Any) -> Any:
            return [emit(R.permute_dims(emit(R.reshape(emit(R.exp(x)), (n * 2, m))), [1, 0]))]

        mod = pipeline("llvm")(build(body, ((n, 2, m), "float32")))
        text = "".join(f.script() for g, f in mod.functions.items() if g.name_hint.startswith("stitch"))
        return re.search(r"(//|%) \(?[nm]\b", text) is not None

    assert lowered_length(truncated(D(D(D(I, N), J), N + J), ())) < lowered_length(D(I, N))
    assert not floors()
    kept = faults.module_of("codegen.cpu.lanes")
    monkeypatch.setattr(kept, "truncated", lambda e, signed: e)
    assert floors()
