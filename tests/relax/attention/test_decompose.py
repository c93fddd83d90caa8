# SPDX-License-Identifier: Apache-2.0
"""``R.nn.attention`` written out: the same results, and products that templates and libraries compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

import tvm_stitch
from stitch_testing.workloads.attention import Case, inputs, reference
from tests.graph.helpers import build, symbol
from tvm_stitch.relax.attention.decompose import DecomposeAttention

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "haswell"})


def attend(case: Case, causal: str | None, window: Any = None) -> tvm.IRModule:
    shapes = [(case.batch, n, case.heads, case.size) for n in (case.queries, case.keys, case.keys)]
    shapes += [case.mask] if case.mask is not None else []

    def body(emit: Any, *args: Any) -> Any:
        return emit(R.nn.attention(*args, causal_mask=causal, window_size=window))

    return build(body, *((shape, case.dtype) for shape in shapes))


def wanted(case: Case, causal: str | None, arrays: list[np.ndarray]) -> np.ndarray:
    seen = np.zeros((case.queries, case.keys))
    if causal is not None:
        offset = 0 if causal == "TopLeft" else case.keys - case.queries
        seen[np.arange(case.keys) > np.arange(case.queries)[:, None] + offset] = -np.inf
    mask = seen + (arrays[3].astype("float64") if case.mask is not None else 0.0)
    full = Case(case.batch, case.heads, case.queries, case.keys, case.size, mask=mask.shape)
    return reference(full, [*arrays[:3], mask])


@pytest.mark.parametrize("causal", [None, "TopLeft", "BottomRight"])
@pytest.mark.parametrize("mask", [None, (2, 1, 7, 11), (1, 3, 1, 11)])
def test_results(causal: str | None, mask: Any) -> None:
    case = Case(2, 3, 7, 11, 8, "float32", mask)
    mod = attend(case, causal)
    arrays = inputs(case, np.random.default_rng())
    executable = tvm_stitch.compile(mod, TARGET)
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, arrays)).numpy()
    np.testing.assert_allclose(found, wanted(case, causal, arrays), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("causal", [None, "BottomRight"])
def test_symbolic_extents(causal: str | None) -> None:
    b, m, n = (symbol(name) for name in "bmn")
    machine = relax.VirtualMachine(
        tvm_stitch.compile(attend(Case(b, 2, m, n, 8, "float32"), causal), TARGET), tvm.cpu()
    )
    for sizes in ((2, 5, 9), (1, 1, 1), (3, 4, 4)):
        case = Case(sizes[0], 2, *sizes[1:], 8, "float32")
        arrays = inputs(case, np.random.default_rng())
        found = machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()
        np.testing.assert_allclose(found, wanted(case, causal, arrays), rtol=1e-5, atol=1e-5)


def test_templates_compute_the_products() -> None:
    """Templates take the products of attention that no kernel of this package takes, or is asked for."""
    apart = tvm_stitch.StitchConfig(compute="auto, attention=tvm")
    report = tvm_stitch.explain(attend(Case(2, 3, 32, 32, 16, "float32"), None), TARGET, apart)
    found = [how for name, how in report.computed.items() if not name.startswith("attention ")]
    assert [how.startswith("our template") for how in found] == [True, True]
    left = tvm_stitch.explain(
        attend(Case(2, 3, 32, 32, 16, "float32"), None), TARGET, tvm_stitch.StitchConfig(compute="tvm")
    )
    assert not any(how.startswith("our template") for how in left.computed.values())


def test_windows_stay() -> None:
    mod = attend(Case(2, 3, 8, 8, 16, "float32"), "TopLeft", 4)
    tvm.ir.assert_structural_equal(DecomposeAttention()(mod), mod)
