# SPDX-License-Identifier: Apache-2.0
"""Graphs evaluated in NumPy: as the reference evaluates the operators they come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op as R

from stitch_testing.reference import relax as reference
from stitch_testing.reference.graph_eval import evaluate_graph
from tests.graph.helpers import Spec, build, draw, single, symbol

F32 = "float32"
X = ((6, 20), F32)

OPERATORS: dict[str, tuple[Callable[..., Any], Sequence[Spec]]] = {
    "softmax": (lambda emit, x: R.nn.softmax(x, 0), [X]),
    "layer norm": (lambda emit, x, g, b: R.nn.layer_norm(x, g, b, axes=[-1]), [X, ((20,), F32), ((20,), F32)]),
    "padding": (lambda emit, x: R.nn.pad(x, [1, 2, 0, 3], pad_value=1.5), [X]),
    "slices": (lambda emit, x: R.strided_slice(x, [0, 1], [1, 7], [6, 0], [2, -3]), [X]),
    "concat": (lambda emit, x, y: R.concat([x, y], 1), [X, ((6, 3), F32)]),
    "transposes": (lambda emit, x: R.permute_dims(x, [2, 0, 1]), [((3, 4, 5), F32)]),
    "reshapes": (lambda emit, x: R.reshape(x, (4, 30)), [X]),
    "products": (lambda emit, x: R.prod(x, [0]), [X]),
    "extremes": (lambda emit, x: R.min(x), [X]),
    "integers": (lambda emit, x, y: R.floor_divide(x, y), [((40,), "int32"), ((1,), "int32")]),
    "integer sums": (lambda emit, x: R.sum(x, -1), [((4, 30), "int8")]),
    "conditions": (lambda emit, c, x, y: R.where(c, x, y), [((6, 20), "bool"), X, X]),
    "roundings": (lambda emit, x: R.astype(x, "float16"), [X]),
    "gathers": (lambda emit, x: R.take(x, relax.const([3, 0, 5], "int32"), axis=0), [X]),
    "ignored labels": (
        lambda emit, x: R.nn.nll_loss(x, relax.const([3, -100, 0, 19, -100, 7], "int64"), reduction="none"), [X],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("exact", [True, False])
def test_agrees_with_the_reference(name: str, exact: bool) -> None:
    body, specs = OPERATORS[name]
    mod, arrays = build(body, *specs), draw(specs, low=0.5)
    if name == "integers":
        arrays[1][:] = 3
    constants = [x.numpy() for x in constants_of(mod)]
    (actual,) = evaluate_graph(single(body, *specs), [*arrays, *constants], exact)
    (expected,) = reference.evaluate(mod, arrays)
    tolerance = 1e-12 if exact else 2e-6
    np.testing.assert_allclose(actual.astype(expected.dtype), expected, rtol=tolerance, atol=tolerance)


def constants_of(mod: Any) -> list[Any]:
    """Return the tensor constants of a module: further inputs of its graph."""
    found: list[Any] = []

    def note(e: Any) -> None:
        if type(e).__name__ in ("Constant", "GenericConst") and len(e.value.shape):
            found.append(e.value)

    relax.analysis.post_order_visit(mod["main"], note)
    return found


def test_half_types_are_held_in_float32_and_rounded_where_told() -> None:
    specs = [((1, 3000), "float16")]
    x = np.full((1, 3000), 30.0, "float16")
    found = single(lambda emit, x: R.sum(x, -1), *specs)
    (total,) = evaluate_graph(found, [x], exact=False)
    assert total.dtype == "float16" and np.isinf(total).all()  # 90,000 is held, and overflows as an output
    (exact,) = evaluate_graph(found, [x])
    assert exact == 90_000


def test_sums_are_taken_in_order() -> None:
    """1e8 absorbs ones that come after it."""
    found = single(lambda emit, x: R.sum(x, -1), ((1, 101), F32))
    x = np.ones((1, 101), F32)
    x[0, 0] = 1e8
    assert evaluate_graph(found, [x], exact=False)[0] == np.float32(1e8)
    assert evaluate_graph(found, [x])[0] == 100_000_100


def test_wrong_inputs_are_refused() -> None:
    found = single(lambda emit, x: R.exp(x), X)
    with pytest.raises(ValueError, match="takes 1 inputs, got 0"):
        evaluate_graph(found, [])
    with pytest.raises(ValueError, match=r"given an array of shape \(3, 20\)"):
        evaluate_graph(found, [np.zeros((3, 20), F32)])
    with pytest.raises(NotImplementedError, match="symbolic extent"):
        evaluate_graph(single(lambda emit, x: R.exp(x), ((symbol(), 20), F32)), [np.zeros((3, 20), F32)])
