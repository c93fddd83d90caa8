# SPDX-License-Identifier: Apache-2.0
"""Element-wise operators behind a reshaped product come before the reshape, and into the product's kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R
from tvm.script import ir as I
from tvm.script import relax as RS
from tvm.script import tirx as T

from stitch_testing.random.graphs import emulated_target
from stitch_testing.reference.relax import evaluate, mismatches
from tests.graph.helpers import LLVM, build, symbol
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.layout.reshapes import SinkReshapes


@I.ir_module
class Before:
    @RS.function
    def main(
        x: RS.Tensor(("n", 8), "float32"),
        w: RS.Tensor((8, 6), "float32"),
        b: RS.Tensor((6,), "float32"),
        scale: RS.Tensor((1, 1, 6), "float32"),
        residual: RS.Tensor(("n // 4", 4, 6), "float32"),
    ) -> RS.Tensor(("n // 4", 4, 6), "float32"):
        n = T.int64()
        with RS.dataflow():
            product = RS.matmul(x, w)
            biased = RS.add(product, b)
            layered = RS.reshape(biased, (n // 4, 4, 6))
            active = RS.nn.gelu(layered)
            halved = RS.multiply(active, RS.const(0.5, "float32"))
            gated = RS.multiply(halved, layered)
            scaled = RS.multiply(gated, scale)
            result = RS.add(scaled, residual)
            RS.output(result)
        return result


@I.ir_module
class After:
    @RS.function
    def main(
        x: RS.Tensor(("n", 8), "float32"),
        w: RS.Tensor((8, 6), "float32"),
        b: RS.Tensor((6,), "float32"),
        scale: RS.Tensor((1, 1, 6), "float32"),
        residual: RS.Tensor(("n // 4", 4, 6), "float32"),
    ) -> RS.Tensor(("n // 4", 4, 6), "float32"):
        n = T.int64()
        with RS.dataflow():
            product = RS.matmul(x, w)
            biased = RS.add(product, b)
            active = RS.nn.gelu(biased)
            halved = RS.multiply(active, RS.const(0.5, "float32"))
            gated = RS.multiply(halved, biased)
            weights = RS.reshape(scale, (6,))
            scaled = RS.multiply(gated, weights)
            flat = RS.reshape(residual, (n, 6))
            added = RS.add(scaled, flat)
            result = RS.reshape(added, (n // 4, 4, 6))
            RS.output(result)
        return result


def test_a_chain_behind_a_linear_layer() -> None:
    tvm.ir.assert_structural_equal(SinkReshapes()(Before), After, map_free_vars=True)


def untouched(emit: Any, x: Any, w: Any, y: Any, rows: Any) -> Any:
    product = emit(R.matmul(x, w))
    of_rows = emit(R.reshape(product, (2, 3, 6)))
    return [
        R.add(of_rows, rows),  # of an axis that the reshape makes
        R.multiply(
            emit(R.reshape(product, (2, 9, 2))), emit(R.reshape(y, (1, 1, 2)))
        ),  # the last axis is divided
        R.exp(emit(R.reshape(y, (1, 2)))),  # of no product
        R.sum(of_rows, 1),
    ]


def test_what_depends_on_other_axes_stays() -> None:
    specs = [((6, 8), "float32"), ((8, 6), "float32"), ((2,), "float32"), ((3, 1), "float32")]
    mod = build(untouched, *specs)
    tvm.ir.assert_structural_equal(SinkReshapes()(mod), mod)


def of_other_shapes(emit: Any, x: Any, w: Any, y: Any, v: Any) -> Any:
    product = emit(R.matmul(x, w))
    other = emit(R.matmul(y, v))
    return [
        # Reshapes that are broadcast: the result has more elements than the product.
        R.add(emit(R.reshape(product, (6, 1, 6))), emit(R.reshape(product, (1, 6, 6)))),
        # Products of different shapes that are reshaped to one shape.
        R.multiply(emit(R.reshape(product, (2, 3, 6))), emit(R.reshape(other, (2, 3, 6)))),
    ]


def test_operands_of_other_shapes_stay() -> None:
    specs = [((6, 8), "float32"), ((8, 6), "float32"), ((4, 8), "float32"), ((8, 9), "float32")]
    mod = build(of_other_shapes, *specs)
    tvm.ir.assert_structural_equal(SinkReshapes()(mod), mod)


def linear(emit: Any, x: Any, w: Any, b: Any) -> Any:
    """Build PyTorch's linear layer of three axes as it is imported, with GELU behind it."""
    batch, length, depth = x.ty.shape
    flat = emit(R.reshape(x, (batch * length, depth)))
    biased = emit(R.add(b, emit(R.matmul(flat, w))))
    return R.nn.gelu(emit(R.reshape(biased, (batch, length, 16))))


@pytest.mark.parametrize("target", [LLVM, emulated_target()], ids=["llvm", "cuda"])
@pytest.mark.parametrize("batch", [3, symbol()], ids=["static", "symbolic"])
def test_an_activation_behind_a_linear_layer_is_no_kernel(target: tvm.target.Target, batch: Any) -> None:
    mod = build(linear, ((batch, 5, 8), "float32"), ((8, 16), "float32"), ((16,), "float32"))
    counted = count_kernels(mod, target, pipeline(target))
    assert (counted.compute_intensive, counted.total) == (1, 1), counted.names
    assert count_kernels(mod, target).total > 1


@pytest.mark.parametrize("rows", [4, 12])
def test_the_numbers_stay(rows: int) -> None:
    rng = np.random.default_rng(rows)
    shapes = [(rows, 8), (8, 6), (6,), (1, 1, 6), (rows // 4, 4, 6)]
    inputs = [rng.standard_normal(shape).astype("float32") for shape in shapes]
    executable = tvm.compile(Before, LLVM, relax_pipeline=pipeline(LLVM))
    got = relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, inputs)).numpy()
    assert mismatches([got], evaluate(Before, inputs), {"float32": (1e-5, 1e-5)}) == []


@pytest.mark.parametrize("shape", [(0, 8), (3, 0, 8)])
def test_what_has_no_elements_stays(shape: tuple[int, ...]) -> None:
    """A reshape takes an extent of 0 for that of its operand."""
    mod = build(
        lambda emit, x, w: emit(R.nn.relu(emit(R.expand_dims(emit(R.matmul(x, w)), 0)))),
        (shape, "float32"),
        ((8, 4), "float32"),
    )
    tvm.ir.assert_structural_equal(SinkReshapes()(mod), mod)
