# SPDX-License-Identifier: Apache-2.0
"""TVM fuses no chain of functions whose kernel would grow exponentially."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.choices import CHOICES
from tests.graph.helpers import build, legalize
from tvm_stitch.relax.legalize.short_reductions import ShortReductions
from tvm_stitch.relax.lowering.inlined_chains import InlinedChains
from tvm_stitch.repairs.legalize.fuse_rest import FuseRest

FEW = replace(CHOICES, inlined_operations=100)


def doubling(steps: int, between: Callable[[Any], Any] | None = None) -> Callable[..., Any]:
    """Return a body in which each value reads the one before twice."""

    def body(emit: Any, x: Any) -> Any:
        for step in range(steps):
            x = emit(R.add(x, emit(R.permute_dims(x, [1, 0]))))
            if between is not None and step % 4 == 3:
                x = emit(between(x))
        return x

    return body


def kernels(body: Callable[..., Any], bounded: bool) -> int:
    """Return the number of calls after TVM's fusion."""
    passes = [relax.transform.AnnotateTIROpPattern(), FuseRest(), relax.transform.FuseTIR()]
    if bounded:
        passes.insert(1, InlinedChains(FEW))
    mod = tvm.transform.Sequential(passes)(legalize(build(body, ((8, 8), "float32"))))
    return sum(len(block.bindings) for block in mod["main"].body.blocks)


@pytest.mark.parametrize(("steps", "wanted"), [(4, 1), (12, 4)])
def test_long_chains_end(steps: int, wanted: int) -> None:
    """Four steps are 30 operations when all are inlined, six are 126."""
    assert kernels(doubling(steps), False) == 1
    assert kernels(doubling(steps), True) == wanted


def test_a_reduction_ends_a_chain() -> None:
    summed = doubling(12, lambda x: R.add(R.sum(x, [0], keepdims=True), R.sum(x, [1], keepdims=True)))
    assert kernels(summed, True) == kernels(summed, False)


def test_short_chains_leave_a_module_alone() -> None:
    mod = relax.transform.AnnotateTIROpPattern()(legalize(build(doubling(3), ((8, 8), "float32"))))
    assert InlinedChains(CHOICES)(mod).same_as(mod)


@pytest.mark.parametrize(("sides", "wanted"), [((3, 2), 2), ((2, 2), 1), ((3, 1, 3), 2)])
def test_windows_of_windows_end(sides: tuple[int, ...], wanted: int) -> None:
    """A relu is behind each pool. 36 elements for a result are too many, and 16 are not."""

    def body(emit: Any, x: Any) -> Any:
        for side in sides:
            x = emit(R.nn.relu(emit(R.nn.max_pool2d(x, (side, side), (1, 1), layout="NHWC"))))
        return x

    mod = ShortReductions(CHOICES)(build(body, ((1, 12, 12, 16), "float32")))
    passes = [relax.transform.AnnotateTIROpPattern(), InlinedChains(CHOICES), FuseRest()]
    fused = tvm.transform.Sequential([*passes, relax.transform.FuseTIR()])(legalize(mod))
    assert sum(len(block.bindings) for block in fused["main"].body.blocks) == wanted
