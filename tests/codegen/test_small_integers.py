# SPDX-License-Identifier: Apache-2.0
"""Small integers become floats by bits: exactly, and only where a mask bounds them."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax, te, tirx
from tvm.tirx import Var, const

from tests.graph.helpers import emulated
from tvm_stitch.codegen.small_integers import float_of_masked, with_offset_joined


def masked(mask: int, dtype: str = "uint32") -> tirx.PrimExpr:
    """Return an integer below or equal to a mask."""
    return tirx.bitwise_and(Var("word", dtype), const(mask, dtype))


@pytest.mark.parametrize(
    ("mask", "dtype", "exact"),
    [
        (15, "float16", True),
        (2047, "float16", True),
        (2048, "float16", False),
        (255, "bfloat16", True),
        (256, "bfloat16", False),
        ((1 << 23) - 1, "float32", True),
        (1 << 23, "float32", False),
        (15, "float64", False),
    ],
)
def test_integers_that_a_type_holds(mask: int, dtype: str, exact: bool) -> None:
    integer = masked(mask)
    assert (float_of_masked(integer, integer, dtype) is not None) == exact


def test_integers_without_a_mask_are_converted() -> None:
    word = Var("word", "uint32")
    assert float_of_masked(word, word, "float32") is None


def test_a_zero_point_is_part_of_the_offset() -> None:
    made = float_of_masked(masked(15), masked(15), "float16")
    joined = with_offset_joined(made, const(7.0, "float32"))
    assert joined is not None
    assert float(joined.b.value) == 8388615
    assert with_offset_joined(made, const(0.5, "float32")) is None


def test_differences_of_a_models_own_floats_are_rounded_one_by_one() -> None:
    own = tirx.exp(Var("x", "float32")) - const(float(1 << 23), "float32")
    assert with_offset_joined(own, const(7.0, "float32")) is None


def test_every_integer_of_a_mask_is_exact() -> None:
    builder = relax.BlockBuilder()
    words = relax.Var("words", relax.TensorType((512,), "uint32"))
    with builder.function("main", [words]):
        with builder.dataflow():

            def floats(x: te.Tensor) -> te.Tensor:
                return te.compute(
                    x.shape, lambda i: (x[i] & const(511, "uint32")).astype("float32") - const(3.0, "float32")
                )

            result = builder.emit_output(builder.emit_te(floats, words))
        builder.emit_func_output(result)
    integers = np.arange(512, dtype="uint32") | np.uint32(0xABC00000)
    (found,) = emulated(builder.get(), integers)
    np.testing.assert_array_equal(found, np.arange(512, dtype="float32") - 3)
