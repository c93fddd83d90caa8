# SPDX-License-Identifier: Apache-2.0
"""Functions whose parameters have symbols in expressions only: their IR, their numbers, and sizes that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, te
from tvm.relax import op as R

from tests.graph.helpers import build, symbol
from tests.repairs import faults
from tvm_stitch.importers.symbolic.computed import computed
from tvm_stitch.repairs.imports.derived_inputs import DerivedInputs

N, M = symbol("n"), symbol("m")
EVEN = build(lambda emit, x: R.exp(x), ((2 * N, 3), "float32"))
BOTH = build(
    lambda emit, x, y, z: R.concat([x, z], 0),
    ((N + 1,), "float32"),
    ((M,), "float32"),
    ((N + M,), "float32"),
)
SQUARE = build(lambda emit, x: R.exp(x), ((N * N,), "float32"))


def run(mod: tvm.IRModule, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    """Return the inputs and the result of a module."""
    machine = relax.VirtualMachine(
        tvm.compile(mod, faults.LLVM, relax_pipeline=faults.ours(faults.LLVM)), tvm.cpu()
    )
    given = [np.random.default_rng(0).random(shape, "float32") for shape in shapes]
    return [*given, machine["main"](*map(tvm.runtime.tensor, given)).numpy()]


def test_the_symbol_is_computed_first() -> None:
    rows, builder = symbol("rows"), relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([rows, 3], "float32"))
    with builder.function("main", [x]):
        shape = relax.ShapeType(ndim=1)
        copy = relax.op.call_pure_packed("vm.builtin.copy", relax.ShapeExpr([rows // 2]), ty_args=shape)
        value = builder.emit(copy)
        builder.match_cast(value, relax.ShapeType([N]))
        even = builder.match_cast(x, relax.TensorType([2 * N, 3], "float32"))
        with builder.dataflow():
            result = builder.emit_output(R.exp(even))
        builder.emit_func_output(result)
    tvm.ir.assert_structural_equal(DerivedInputs()(EVEN), builder.get(), map_free_vars=True)


def test_functions_without_such_symbols_stay() -> None:
    assert DerivedInputs()(SQUARE)["main"].same_as(SQUARE["main"])


def test_numbers() -> None:
    x, result = run(EVEN, (8, 3))
    np.testing.assert_allclose(result, np.exp(x), rtol=1e-6)
    x, _, z, result = run(BOTH, (5,), (3,), (7,))
    np.testing.assert_array_equal(result, np.concatenate([x, z]))


def counted(n: Any) -> te.Tensor:
    return te.compute((2 * n,), lambda i: i.astype("float32"))


def numbered() -> tvm.IRModule:
    """Return a call of a function of TIR that has the symbol as an argument, and a reader of its result."""
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType([2 * N], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            places = computed(builder, "places", counted, (), (N,))
            result = builder.emit_output(R.exp(R.add(x, places)))
        builder.emit_func_output(result)
    return builder.get()


def test_the_symbol_is_an_argument() -> None:
    x, result = run(numbered(), (6,))
    np.testing.assert_allclose(result, np.exp(x + np.arange(6)), rtol=1e-6)


@pytest.mark.parametrize("shapes", [((7, 3),), ((8, 4),)])
def test_sizes_that_do_not_fit(shapes: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(Exception, match="mismatch|match_cast"):
        run(EVEN, *shapes)


def test_fault() -> None:
    faults.needed(faults.raises(lambda: tvm.compile(EVEN, faults.LLVM)), "imports/derived_inputs.py")


def test_repair() -> None:
    assert not faults.raises(lambda: run(EVEN, (8, 3)))
    with faults.without("DerivedInputs"):
        assert faults.raises(lambda: run(EVEN, (8, 3)))
