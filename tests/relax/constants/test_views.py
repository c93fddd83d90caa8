# SPDX-License-Identifier: Apache-2.0
"""Views of constants are folded as in NumPy, each once. Views of computed values stay."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build
from tvm_stitch.relax.constants.views import ConstantViews

W = np.arange(24, dtype="float32").reshape(2, 1, 3, 4)


def constants(mod: tvm.IRModule) -> list[Any]:
    found: list[Any] = []

    def visit(e: Any) -> None:
        if isinstance(e, tvm.ir.GenericConst) and not any(e.value.same_as(known) for known in found):
            found.append(e.value)

    relax.analysis.post_order_visit(mod["main"], visit)
    return found


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "bool"])
@pytest.mark.parametrize(
    ("view", "meaning"),
    [
        (lambda w: R.permute_dims(w, [0, 2, 3, 1]), lambda w: w.transpose(0, 2, 3, 1)),
        (R.permute_dims, lambda w: w.T),
        (lambda w: R.reshape(w, [4, -1]), lambda w: w.reshape(4, 6)),
        (lambda w: R.expand_dims(w, [0, -1]), lambda w: w[None, ..., None]),
        (lambda w: R.squeeze(w, [1]), lambda w: w[:, 0]),
        (R.flatten, np.ravel),
    ],
)
def test_a_view(view: Any, meaning: Any, dtype: str) -> None:
    w = W.astype(dtype)
    mod = ConstantViews()(build(lambda emit, x: [emit(view(relax.const(w, dtype)))], ((1,), "float32")))
    (found,) = constants(mod)
    np.testing.assert_array_equal(found.numpy(), meaning(w))
    assert str(found.dtype) == dtype


@pytest.mark.parametrize(("cuts", "axis"), [(2, 0), (2, -1), ([1], 2), ([1, 3], 3), (3, 3)])
def test_parts(cuts: Any, axis: int) -> None:
    """The joined weight of an attention's inputs is split like this. Of 4 elements, 3 sections have 2, 2 and 0."""

    def body(emit: Any, x: Any) -> Any:
        parts = emit(R.split(emit(R.permute_dims(relax.const(W), [0, 1, 2, 3])), cuts, axis))
        return [emit(relax.TupleGetItem(parts, i)) for i in range(len(parts.ty.fields))]

    mod = build(body, ((1,), "float32"))
    types = mod["main"].ret_ty.fields
    extents = [int(each.shape[axis]) for each in types]
    ends = np.cumsum(extents)
    folded = ConstantViews()(mod)
    wanted = [W.take(range(end - extent, end), axis) for end, extent in zip(ends, extents)]
    for found, part in zip(constants(folded), wanted, strict=True):
        np.testing.assert_array_equal(found.numpy(), part)
    assert "split" not in folded.script(show_meta=False)


def test_parts_of_what_is_computed_stay() -> None:
    def body(emit: Any, x: Any) -> Any:
        parts = emit(R.split(x, 2, 0))
        return [emit(relax.TupleGetItem(parts, i)) for i in range(2)]

    mod = build(body, ((4, 3), "float32"))
    tvm.ir.assert_structural_equal(ConstantViews()(mod), mod)


def chain(emit: Any, x: Any) -> list[Any]:
    w = relax.const(W)
    first = emit(R.reshape(emit(R.permute_dims(w)), [12, 2]))
    second = emit(R.reshape(emit(R.permute_dims(w)), [12, 2]))
    return [R.add(first, x), R.multiply(second, x)]


def test_a_chain_of_views_is_one_constant() -> None:
    mod = ConstantViews()(build(chain, ((12, 2), "float32")))
    mod = relax.transform.DeadCodeElimination()(relax.transform.CanonicalizeBindings()(mod))
    used = {c for c in constants(mod) if list(c.shape) == [12, 2]}
    assert len(used) == 1
    np.testing.assert_array_equal(used.pop().numpy(), W.T.reshape(12, 2))


def test_views_of_other_constants_are_others() -> None:
    def body(emit: Any, x: Any) -> list[Any]:
        first, second = (emit(R.permute_dims(relax.const(w))) for w in (W, W + 1))
        return [R.add(emit(R.multiply(first, x)), second)]

    mod = ConstantViews()(build(body, ((1,), "float32")))
    vm = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    result = vm["main"](tvm.runtime.tensor(np.ones(1, "float32"))).numpy()
    np.testing.assert_array_equal(result, (2 * W + 1).T)


def test_what_is_computed_stays() -> None:
    mod = build(lambda emit, x: [R.permute_dims(x)], ((2, 3), "float32"))
    tvm.ir.assert_structural_equal(ConstantViews()(mod), mod)


@pytest.mark.parametrize(
    ("source", "dtype"),
    [("float32", "float16"), ("float32", "bfloat16"), ("bfloat16", "float32"), ("float16", "float32")],
)
def test_a_constant_of_another_float(source: str, dtype: str) -> None:
    types = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
    w = np.array([1, 1 + 2.0**-9, 1 + 3 * 2.0**-9, 70000, np.nan, np.inf, -0.0, 2.0**-26], np.float32)
    w = w.astype(types[source])
    mod = build(lambda emit, x: [emit(R.astype(relax.const(w, source), dtype))], ((1,), "float32"))
    (found,) = constants(ConstantViews()(mod))
    np.testing.assert_array_equal(found.numpy().astype("float64"), w.astype(types[dtype]).astype("float64"))
    assert str(found.dtype) == dtype


def test_casts_to_integers_stay() -> None:
    """The machine decides what they give out of range."""
    w = relax.const(np.array([1.5, 3e9], np.float32))
    mod = build(lambda emit, x: [emit(R.astype(w, "int32"))], ((1,), "float32"))
    tvm.ir.assert_structural_equal(ConstantViews()(mod), mod)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32", "int64", "bool"])
@pytest.mark.parametrize("shape", [(), (6,)])
def test_a_constant_of_another_integer(shape: tuple[int, ...], dtype: str) -> None:
    """A value out of range wraps around, as in a kernel: TVM's legalization of such a scalar raises."""
    w = np.array([300, -1, 0, 2**31 - 1, -(2**31), 127], np.int32)
    w = w[0] if shape == () else w
    made = ConstantViews()(
        build(lambda emit, x: [emit(R.astype(relax.const(w, "int32"), dtype))], ((1,), "float32"))
    )
    (found,) = constants(made)
    np.testing.assert_array_equal(found.numpy(), w.astype(dtype))
    assert str(found.dtype) == dtype
