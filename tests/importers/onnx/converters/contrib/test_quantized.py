# SPDX-License-Identifier: Apache-2.0
"""Quantized operators of ONNX Runtime compute what it does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.importers.onnx.runs import MICROSOFT, RNG, compare, computed, floats, model


def unsigned(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape).astype("uint8")


def signed(*shape: int) -> np.ndarray:
    return RNG.integers(-128, 128, shape).astype("int8")


SCALES = {
    "s": np.float32(0.02), "z": np.uint8(100), "t": np.float32(0.03),
    "w": np.uint8(110), "o": np.float32(0.05), "p": np.uint8(120),
}  # fmt: skip
PAIR = {"a": unsigned(3, 8), "b": unsigned(3, 8)}
ONE = {"a": PAIR["a"]}
BYTES: dict[str, tuple[Any, ...]] = {
    "QLinearAdd": ("asbtop", "aszbtwop", {}, PAIR),
    "QLinearMul": ("", "aszbtwop", {}, PAIR),
    "QLinearSigmoid": ("", "aszop", {}, ONE),
    "QLinearLeakyRelu": ("", "aszop", {"alpha": 0.2}, ONE),
    "QLinearGlobalAveragePool": ("", "aszop", {}, {"a": unsigned(1, 3, 4, 4)}),
    "QLinearConcat": ("", "opaszbtw", {"axis": 1}, PAIR),
}


@pytest.mark.parametrize("op", BYTES)
def test_operators_on_bytes(op: str) -> None:
    """Allow the next integer after rounding: TVM and ONNX Runtime multiply in another order."""
    _, names, attributes, inputs = BYTES[op]
    constants = {name: SCALES[name] for name in names if name in SCALES}
    compare(
        helper.make_node(op, list(names), ["y"], domain=MICROSOFT, **attributes), inputs, constants, atol=1
    )


@pytest.mark.parametrize(("k", "zeros"), [(40, True), (48, False)])
def test_weights_of_four_bits(k: int, zeros: bool) -> None:
    node = helper.make_node(
        "MatMulNBits",
        list("abs") + (["z"] if zeros else []),
        ["y"],
        domain=MICROSOFT,
        K=k,
        N=6,
        bits=4,
        block_size=16,
    )
    constants = {"b": unsigned(6, 3, 8), "s": floats(18)} | ({"z": unsigned(12)} if zeros else {})
    compare(node, {"a": floats(3, k)}, constants)


@pytest.mark.parametrize("zeros", [False, True])
def test_rows_of_weights_in_any_group(zeros: bool) -> None:
    node = helper.make_node(
        "MatMulNBits", ["a", "b", "s", "z" if zeros else "", "g"], ["y"], domain=MICROSOFT,
        K=48, N=6, bits=4, block_size=16,
    )  # fmt: skip
    inputs = {"a": floats(3, 48)}
    constants = {"b": unsigned(6, 3, 8), "s": floats(18), "g": RNG.integers(0, 3, 48).astype("int32")}
    if not zeros:
        return compare(node, inputs, constants)
    constants["z"] = unsigned(12)  # ONNX Runtime 1.31 leaves zero points out on CPUs if there are groups

    def halves(packed: np.ndarray) -> np.ndarray:
        return np.stack([packed & 15, packed >> 4], -1).reshape(6, -1).astype("float64")

    groups = constants["g"]
    real = halves(constants["b"]) - halves(constants["z"].reshape(6, 2))[:, groups]
    wanted = inputs["a"] @ (real * constants["s"].reshape(6, 3)[:, groups]).T
    (found,) = computed(model(node, inputs, constants), inputs)
    np.testing.assert_allclose(found, wanted, 1e-4, 1e-4)


def test_a_matmul_quantizes_its_input() -> None:
    node = helper.make_node("DynamicQuantizeMatMul", list("abszc"), ["y"], domain=MICROSOFT)
    constants = {"b": signed(8, 5), "s": np.float32(0.02), "z": np.int8(3), "c": floats(5)}
    compare(node, {"a": floats(3, 8)}, constants, rtol=1e-3, atol=1e-3)


def test_a_matmul_of_integers_to_floats() -> None:
    node = helper.make_node("MatMulIntegerToFloat", list("abstzw"), ["y"], domain=MICROSOFT)
    constants = {
        "b": signed(8, 5),
        "s": np.float32(0.02),
        "t": np.float32(0.1),
        "z": np.uint8(3),
        "w": np.int8(1),
    }
    compare(node, {"a": unsigned(3, 8)}, constants)
