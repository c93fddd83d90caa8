# SPDX-License-Identifier: Apache-2.0
"""A recurrent layer as a loop, which TVM alone compiles, and layers that have no kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm

import tvm_stitch
from cuda_emulator import lower, run_lowered
from tests.compute.recurrent.reference import cell_of, draw, layer_in_float64, same
from tests.relax.loops.modules import arguments, layer_module, run
from tvm_stitch.compute.recurrent.cell import Layer
from tvm_stitch.relax import pipeline

CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")


@pytest.mark.parametrize(
    "layer",
    [
        Layer(cell_of("lstm", 6, ["sigmoid", "softsign", "elu"], peepholes=True, clip=0.6), True, True),
        Layer(cell_of("gru", 6), masked=True),
        Layer(cell_of("gru", 6, linear_before_reset=True)),
        Layer(cell_of("rnn", 6, [("thresholdedrelu", 0.2)])),
    ],
)
def test_without_stitching(layer: Layer) -> None:
    """The loop is plain Relax, which does not need this package's passes."""
    given = draw(layer, 3, 2, 4)
    executable = tvm.compile(layer_module(layer, given), "llvm")
    for steps in (0, 1, 2, 7):
        own = given | {
            n: v for n, v in draw(layer, steps, 3, 4, 1).items() if n in ("x", "h", "c", "lengths")
        }
        assert same(run(executable, arguments(layer, own)), layer_in_float64(layer, own))


def test_a_projected_state() -> None:
    layer = Layer(cell_of("lstm", 6, projection=4))
    given = draw(layer, 5, 3, 4)
    executable = tvm_stitch.compile(layer_module(layer, given), "llvm")
    assert same(run(executable, arguments(layer, given)), layer_in_float64(layer, given))


def test_float64() -> None:
    layer = Layer(cell_of("gru", 6))
    given: dict[str, Any] = {n: v.astype("float64") for n, v in draw(layer, 5, 3, 4).items()}
    executable = tvm_stitch.compile(layer_module(layer, given), "llvm")
    assert same(run(executable, arguments(layer, given)), layer_in_float64(layer, given), 1e-12)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_in_the_emulator(kind: str) -> None:
    layer = Layer(cell_of(kind, 6), masked=True)
    given = draw(layer, 4, 3, 5)
    inputs = [each.numpy() for each in arguments(layer, given)]
    done = run_lowered(lower(layer_module(layer, given), CUDA, pipeline(CUDA)), inputs)
    done.check()
    for a, b in zip(done.outputs, layer_in_float64(layer, given), strict=True):
        assert np.allclose(a, b, rtol=0, atol=1e-5)
