# SPDX-License-Identifier: Apache-2.0
"""The kernel that packs a weight in a call makes the panels that constants are packed into."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.graph.helpers import build
from tvm_stitch.compute.anchored import anchored
from tvm_stitch.compute.convolution import Convolution
from tvm_stitch.compute.cpu.packing import packed
from tvm_stitch.compute.cpu.packing_kernel import emit_packing
from tvm_stitch.compute.templates import tiles_of
from tvm_stitch.cost.choices import Choices
from tvm_stitch.graph.reader import read
from tvm_stitch.support.failures import Refusal

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "haswell"})
CHANNELS = {"O": 0, "I": 1, "H": 2, "W": 3}


def convolution(weight: tuple[int, ...], order: str, dtype: str, groups: int) -> Convolution:
    """Build a convolution of a weight <outputs, inputs of a group, height, width>, stored in an order of axes."""
    stored = tuple(weight[CHANNELS[axis]] for axis in order)
    mod = build(
        lambda emit, x, w: [relax.op.nn.conv2d(x, w, groups=groups, data_layout="NHWC", kernel_layout=order)],
        ((1, 9, 9, weight[1] * groups), dtype),
        (stored, dtype),
    )
    legal = relax.transform.LegalizeOps()(mod)
    func = next(f for f in legal.functions.values() if isinstance(f, tvm.tirx.PrimFunc))
    product = anchored(read(func, "f")).product
    assert isinstance(product, Convolution)
    return product


def run(conv: Convolution, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the panels of the kernel, and those of constants."""
    tiles = tiles_of(TARGET, Choices(), conv)
    wanted = packed(conv, weight, tiles.columns)
    kernel = emit_packing(conv, tiles, Choices())
    built = tvm.compile(tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")}), TARGET)
    found = tvm.runtime.tensor(np.full(wanted.shape, 7, weight.dtype))
    built["main"](tvm.runtime.tensor(weight), found)
    return found.numpy(), wanted


CASES = [
    ((64, 70, 3, 3), 1), ((5, 3, 7, 7), 1), ((33, 16, 1, 5), 1), ((40, 2, 3, 3), 4), ((12, 1, 3, 3), 12),
    ((9, 1, 3, 3), 3), ((1, 1, 5, 5), 1), ((300, 130, 3, 3), 1),
]  # fmt: skip


@pytest.mark.parametrize(("weight", "groups"), CASES, ids=str)
def test_panels_are_those_of_constants(weight: tuple[int, ...], groups: int) -> None:
    conv = convolution(weight, "OIHW", "float32", groups)
    values = np.random.default_rng(0).standard_normal(weight).astype("float32")
    np.testing.assert_array_equal(*run(conv, values))


@pytest.mark.parametrize(
    ("order", "dtype"), [*itertools.product(["OHWI", "HWIO"], ["float32"]), ("OIHW", "float16")]
)
def test_other_orders_and_types(order: str, dtype: str) -> None:
    weight = (21, 6, 3, 2)
    values = np.random.default_rng(0).standard_normal(weight).astype(dtype)
    stored = np.ascontiguousarray(values.transpose([CHANNELS[axis] for axis in order]))
    np.testing.assert_array_equal(*run(convolution(weight, order, dtype, 1), stored))


def test_dilated_data_is_refused() -> None:
    from .test_residues import convolution as transposed

    conv: Any = transposed(5, 4, 2, 1)
    with pytest.raises(Refusal, match="residue classes"):
        emit_packing(conv, tiles_of(TARGET, Choices(), conv), Choices())
