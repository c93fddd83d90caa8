# SPDX-License-Identifier: Apache-2.0
"""Slices written into tensors mean what they did, and read nothing outside their operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

import tvm_stitch
from cuda_emulator import run_cuda
from stitch_testing.random.graphs import emulated_target
from tests.graph.helpers import build, prim_funcs, symbol
from tests.repairs import faults
from tvm_stitch.relax import pipeline
from tvm_stitch.repairs.legalize.slice_scatters import SLICE_SCATTERS

RNG = np.random.default_rng()
SLICES = [(1, 7, 1), (0, 3, 1), (2, 9, 1), (0, 9, 1), (1, 9, 3), (0, 8, 2), (4, 5, 1)]


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


@pytest.mark.parametrize(("start", "end", "step"), SLICES)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_numbers(start: int, end: int, step: int, axis: int) -> None:
    x = draw(9, 9)
    wanted = x.copy()
    there = np.moveaxis(wanted, axis, 0)[start:end:step]
    source = draw(*np.moveaxis(there, 0, axis).shape)
    there[:] = np.moveaxis(source, axis, 0)
    mod = build(
        lambda emit, x, y: R.slice_scatter(x, y, start, end, step, axis=axis),
        (x.shape, "float32"),
        (source.shape, "float32"),
    )
    assert len(prim_funcs(relax.transform.LegalizeOps(SLICE_SCATTERS)(mod))) == 1
    vm = relax.VirtualMachine(tvm_stitch.compile(mod, "llvm"), tvm.cpu())
    np.testing.assert_array_equal(vm["main"](*map(tvm.runtime.tensor, (x, source))).numpy(), wanted)


def test_images_that_go_on_at_the_other_side() -> None:
    """The test runs in the emulator, which sees reads outside a tensor."""

    def body(emit: Any, x: Any, border: Any) -> Any:
        rows = emit(R.slice_scatter(emit(R.strided_slice(border, [1], [1], [7])), x, 1, 8, 1, axis=0))
        y = emit(R.slice_scatter(border, rows, 1, 7, 1, axis=1))
        y = emit(R.slice_scatter(y, emit(R.strided_slice(y, [1], [6], [7])), 0, 1, 1, axis=1))
        return emit(R.exp(emit(R.slice_scatter(y, emit(R.strided_slice(y, [0], [7], [8])), 0, 1, 1, axis=0))))

    target, x, border = emulated_target(), draw(7, 6), draw(9, 8)
    mod = build(body, (x.shape, "float32"), (border.shape, "float32"))
    run = run_cuda(mod, [x, border], target=target, relax_pipeline=pipeline(target)).check()
    wanted = border.copy()
    wanted[1:8, 1:7] = x
    wanted[:, 0] = wanted[:, 6]
    wanted[0] = wanted[7]
    np.testing.assert_allclose(run.outputs[0], np.exp(wanted), 1e-5)


def test_slices_of_unknown_length_stay_tvms() -> None:
    mod = build(
        lambda emit, x, y: R.slice_scatter(x, y, 1, 3, 1, axis=1),
        ((3, 5), "float32"),
        ((3, symbol()), "float32"),
    )
    made, theirs = (relax.transform.LegalizeOps(own)(mod) for own in (SLICE_SCATTERS, None))
    tvm.ir.assert_structural_equal(made, theirs)


def clamp(table: dict[str, Any] | None) -> str:
    """Return the text of a slice of 2 written into 9 elements, with the bounds of what it reads."""
    specs = [((9,), "float32"), ((2,), "float32")]
    mod = build(lambda emit, x, y: R.slice_scatter(x, y, 1, 3, 1, axis=0), *specs)
    (func,) = prim_funcs(relax.transform.LegalizeOps(table)(mod)).values()
    return str(func.script())


def test_fault() -> None:
    """Of two elements one is read at 8."""
    faults.needed("T.int64(8)), T.int64(0))" in clamp(None), "legalize/slice_scatters.py")


def test_repair() -> None:
    def reports() -> Any:
        target = emulated_target()
        mod = build(
            lambda emit, x, y: R.exp(emit(R.slice_scatter(x, y, 1, 3, 1, axis=0))),
            ((9, 8), "float32"),
            ((2, 8), "float32"),
        )
        return run_cuda(mod, [draw(9, 8), draw(2, 8)], target=target, relax_pipeline=pipeline(target)).reports

    assert "T.int64(8)), T.int64(0))" not in clamp(SLICE_SCATTERS)
    assert "T.int64(8)), T.int64(0))" in clamp({})
    assert not reports()
