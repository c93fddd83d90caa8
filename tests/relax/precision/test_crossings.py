# SPDX-License-Identifier: Apache-2.0
"""Values that are read again behind a product are rounded where they are computed. Everything else stays float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R
from tvm.script import ir as I
from tvm.script import relax as RS

from tests.graph.helpers import build
from tvm_stitch.relax.precision.crossings import with_half_crossings
from tvm_stitch.relax.rewriting.operators import operator_name

Emit = Callable[..., Any]
SQUARE = ((4, 4), "float32")
IMAGE = ((1, 4, 3, 3), "float32")


def crossed(mod: tvm.IRModule, dtype: str = "float16") -> tvm.IRModule:
    return tvm.IRModule({"main": with_half_crossings(mod["main"], dtype)})


def bindings(mod: tvm.IRModule) -> list[Any]:
    return [b for block in mod["main"].body.blocks for b in block.bindings]


def rounded(body: Callable[..., Any], *specs: Any, dtype: str = "float16") -> list[str]:
    """Return the operators whose results are rounded."""
    mod = crossed(build(body, *specs), dtype)
    relax.analysis.well_formed(mod)
    values = {b.var: b.value for b in bindings(mod)}
    casts = [v for v in values.values() if operator_name(v) == "relax.astype" and str(v.ty.dtype) == dtype]
    return [operator_name(values[cast.args[0]]).removeprefix("relax.") for cast in casts]


def test_before_and_after() -> None:
    @I.ir_module
    class Before:
        @RS.function
        def main(x: RS.Tensor((4, 4), "float32"), w: RS.Tensor((4, 4), "float32")):
            with RS.dataflow():
                first = RS.matmul(x, w)
                sums = RS.add(first, x)
                product = RS.matmul(sums, w)
                result = RS.add(sums, product)
                RS.output(result)
            return result

    @I.ir_module
    class After:
        @RS.function
        def main(x: RS.Tensor((4, 4), "float32"), w: RS.Tensor((4, 4), "float32")):
            with RS.dataflow():
                first = RS.matmul(x, w)
                sums = RS.add(first, x)
                half = RS.astype(sums, "bfloat16")
                wide = RS.astype(half, "float32")
                product = RS.matmul(wide, w)
                result = RS.add(wide, product)
                RS.output(result)
            return result

    tvm.ir.assert_structural_equal(crossed(Before, "bfloat16"), After)


def residuals(emit: Emit, x: Any, w: Any) -> list[Any]:
    y = emit(R.nn.relu(emit(R.matmul(x, w))))
    for _ in range(2):
        y = emit(R.add(y, emit(R.matmul(y, w))))
    return [y]


def squeezed(emit: Emit, x: Any, w: Any) -> list[Any]:
    """Scale as a squeeze-and-excitation block: means of the scaled value go through products of their own."""
    y = emit(R.nn.relu(emit(R.nn.conv2d(x, w))))
    means = emit(R.mean(y, [2, 3], True))
    scales = emit(R.sigmoid(emit(R.nn.conv2d(emit(R.tanh(emit(R.nn.conv2d(means, w)))), w))))
    return [R.exp(emit(R.multiply(y, scales)))]


def pooled(emit: Emit, x: Any, w: Any) -> list[Any]:
    """Build a block of PoolFormer: a pool reads what a norm computes, and the result is added to the norm's operand."""
    y = emit(R.tanh(emit(R.nn.conv2d(x, w))))
    scaled = emit(R.sigmoid(y))
    mixed = emit(R.subtract(emit(R.nn.avg_pool2d(scaled, (3, 3), padding=(1, 1, 1, 1))), scaled))
    return [R.exp(emit(R.add(y, mixed)))]


def pooled_input(emit: Emit, x: Any, w: Any) -> list[Any]:
    """Pool a mask, which may hold numbers that a half type does not."""
    y = emit(R.exp(x))
    return [R.add(y, emit(R.nn.max_pool2d(y, (3, 3), padding=(1, 1, 1, 1))))]


def test_what_pools_read_and_cross() -> None:
    assert rounded(pooled, IMAGE, ((4, 4, 1, 1), "float32")) == ["tanh", "sigmoid"]
    assert rounded(pooled_input, IMAGE, ((4, 4, 1, 1), "float32")) == []


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_is_read_behind_a_product(dtype: str) -> None:
    assert rounded(residuals, SQUARE, SQUARE, dtype=dtype) == ["nn.relu", "add"]
    assert rounded(squeezed, IMAGE, ((4, 4, 1, 1), "float32"), dtype=dtype) == ["nn.relu"]


def attention(emit: Emit, x: Any, w: Any, mask: Any) -> list[Any]:
    """Scores and the sums of their rows are read before the next product. The mask comes of none."""
    scores = emit(R.add(emit(R.matmul(emit(R.matmul(x, w)), w)), mask))
    spread = emit(R.exp(emit(R.subtract(scores, emit(R.max(scores, 1, True))))))
    shares = emit(R.divide(spread, emit(R.sum(spread, 1, True))))
    again = emit(R.add(emit(R.matmul(emit(R.matmul(shares, w)), w)), mask))
    return [R.exp(again)]


def norm(emit: Emit, x: Any, w: Any) -> list[Any]:
    y = emit(R.matmul(x, w))
    centred = emit(R.subtract(y, emit(R.mean(y, 1, True))))
    scale = emit(R.rsqrt(emit(R.mean(emit(R.square(centred)), 1, True))))
    return [R.matmul(emit(R.multiply(centred, scale)), w)]


def inputs(emit: Emit, x: Any, w: Any) -> list[Any]:
    y = emit(R.exp(x))
    return [R.add(emit(R.matmul(y, w)), y)]


def only_products(emit: Emit, x: Any, w: Any) -> list[Any]:
    y = emit(R.nn.relu(emit(R.matmul(x, w))))
    return [R.matmul(emit(R.matmul(y, w)), y)]


def integers(emit: Emit, x: Any, w: Any) -> list[Any]:
    y = emit(R.astype(emit(R.matmul(x, w)), "int32"))
    z = emit(R.matmul(emit(R.astype(y, "float32")), w))
    return [R.add(emit(R.astype(z, "int32")), y)]


@pytest.mark.parametrize("body", [attention, norm, inputs, only_products, integers])
def test_what_stays(body: Callable[..., Any]) -> None:
    assert rounded(body, *([SQUARE] * (3 if body is attention else 2))) == []


def test_statistics_that_are_read_behind_a_product_are_rounded() -> None:
    """They go through memory as whatever else does."""

    def body(emit: Emit, x: Any, w: Any) -> list[Any]:
        spread = emit(R.exp(emit(R.matmul(x, w))))
        return [R.divide(emit(R.matmul(spread, w)), emit(R.sum(spread, 1, True)))]

    assert rounded(body, SQUARE, SQUARE) == ["sum"]


@pytest.mark.parametrize("how", ["itself", "in a tuple", "in a tuple in a tuple", "by another name"])
def test_results_stay(how: str) -> None:
    builder = relax.BlockBuilder()
    x, w = (relax.Var(name, relax.TensorType((4, 4), "float32")) for name in "xw")
    with builder.function("main", [x, w]):
        with builder.dataflow():
            y = builder.emit(R.exp(builder.emit(R.matmul(x, w))))
            z = builder.emit(R.add(builder.emit(R.matmul(y, w)), y))
            if how == "itself":
                y, z = builder.emit_output(y), builder.emit_output(z)
                results = relax.Tuple([y, z])
            elif how == "by another name":
                results = relax.Tuple([builder.emit_output(builder.emit(y)), builder.emit_output(z)])
            else:
                several = builder.emit(relax.Tuple([y, z]))
                if how.endswith("in a tuple in a tuple"):
                    several = builder.emit(relax.Tuple([several, z]))
                results = builder.emit_output(several)
        builder.emit_func_output(results)
    mod = builder.get()
    tvm.ir.assert_structural_equal(crossed(mod), mod)


def test_a_tuple_of_values_is_no_result() -> None:
    def body(emit: Emit, x: Any, w: Any) -> list[Any]:
        y = emit(R.exp(emit(R.matmul(x, w))))
        several = emit(relax.Tuple([y, emit(R.matmul(y, w))]))
        return [R.concat(several, axis=0)]

    assert rounded(body, SQUARE, SQUARE) == ["exp"]


def test_several_blocks_and_other_names() -> None:
    """A value that another block reads is rounded for it, too. An annotation of a value's type hides no product."""

    @I.ir_module
    class Before:
        @RS.function
        def main(x: RS.Tensor((4, 4), "float32"), w: RS.Tensor((4, 4), "float32")):
            with RS.dataflow():
                first = RS.matmul(x, w)
                known = RS.match_cast(first, RS.Tensor((4, 4), "float32"))
                y = RS.exp(known)
                RS.output(y)
            z = RS.matmul(y, w)
            with RS.dataflow():
                result = RS.add(y, z)
                RS.output(result)
            return result

    @I.ir_module
    class After:
        @RS.function
        def main(x: RS.Tensor((4, 4), "float32"), w: RS.Tensor((4, 4), "float32")):
            with RS.dataflow():
                first = RS.matmul(x, w)
                known = RS.match_cast(first, RS.Tensor((4, 4), "float32"))
                y = RS.exp(known)
                half = RS.astype(y, "float16")
                wide = RS.astype(half, "float32")
                RS.output(y, wide)
            z = RS.matmul(wide, w)
            with RS.dataflow():
                result = RS.add(wide, z)
                RS.output(result)
            return result

    found = crossed(Before)
    relax.analysis.well_formed(found)
    tvm.ir.assert_structural_equal(found, After)


def test_branches() -> None:
    """Values that both branches read behind a product are rounded before them.

    The value of a branch may be a result.
    """

    @I.ir_module
    class Module:
        @RS.function
        def main(c: RS.Tensor((), "bool"), x: RS.Tensor((4, 4), "float32"), w: RS.Tensor((4, 4), "float32")):
            y = RS.exp(RS.matmul(x, w))
            if c:
                z = RS.add(RS.matmul(y, w), y)
            else:
                u = RS.exp(RS.matmul(y, w))
                z = RS.multiply(u, RS.matmul(u, w))
            return RS.exp(z)

    found = crossed(Module)
    relax.analysis.well_formed(found)
    casts = [line for line in str(found).splitlines() if 'dtype="float16"' in line and "astype" in line]
    assert len(casts) == 2
    x, w = (np.random.default_rng(i).uniform(-0.5, 0.5, (4, 4)).astype("float32") for i in (1, 2))
    for condition in (True, False):
        c, arrays = tvm.runtime.tensor(np.array(condition)), [tvm.runtime.tensor(a) for a in (x, w)]
        results = [
            relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())["main"](c, *arrays).numpy()
            for mod in (found, Module)
        ]
        np.testing.assert_allclose(results[0], results[1], rtol=2.0**-8)
