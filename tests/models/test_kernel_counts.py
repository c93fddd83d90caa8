# SPDX-License-Identifier: Apache-2.0
"""On every workload of the suite, stitched builds launch no more kernels than TVM's, memory-intensive or in all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tvm

from stitch_testing.more_than_stock import more_than_stock
from stitch_testing.random.graphs import emulated_target
from tests.models.test_derived_extents import EXTENTS, moved
from tvm_stitch.relax import pipeline
from tvm_stitch.testing.workloads import cases, grid_cases

WORKLOADS: dict[str, Callable[[], tvm.IRModule]] = {
    **{case.name: case.build for case in cases.cases("test")},
    **{f"{case.name}, whole": case.build for case in grid_cases.grid_cases("test")},
    **{f"moved along {name}": lambda extent=extent: moved(extent) for name, extent in EXTENTS.items()},
}


@pytest.mark.parametrize("target", [tvm.target.Target("llvm"), emulated_target()], ids=["llvm", "cuda"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_no_more_kernels_than_tvm(name: str, target: tvm.target.Target) -> None:
    assert more_than_stock(WORKLOADS[name](), target, pipeline(target)) == ""


@pytest.mark.parametrize("target", [tvm.target.Target("llvm"), emulated_target()], ids=["llvm", "cuda"])
@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
def test_an_encoder_layer_of_torch(symbolic: bool, target: tvm.target.Target) -> None:
    pytest.importorskip("torch")
    encoder = pytest.importorskip("tvm_stitch.testing.workloads.encoder")
    mod = encoder.encoder_layer(2, 5, 24, 3, 40, symbolic=symbolic, masked=True)[0]
    assert more_than_stock(mod, target, pipeline(target)) == ""
