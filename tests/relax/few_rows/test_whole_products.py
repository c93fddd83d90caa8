# SPDX-License-Identifier: Apache-2.0
"""Products whose sums no scope takes are computed by their own functions."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax

from tests.relax.few_rows.models import drawn, layer
from tests.relax.few_rows.test_product_sums import Before, sums
from tvm_stitch import StitchConfig
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.few_rows.whole_products import WholeProducts


def test_sums_become_the_product_again() -> None:
    found = relax.transform.DeadCodeElimination()(WholeProducts()(sums(Before)))
    names = {str(g.name_hint) for g, f in found.functions_items() if isinstance(f, tvm.tirx.PrimFunc)}
    (name,) = names
    tvm.ir.assert_structural_equal(found[name], Before["product"])


def test_a_model_without_scopes_is_right() -> None:
    inputs, wanted = drawn(2, 20, 32, 4)
    llvm = tvm.target.Target("llvm")
    executable = tvm.compile(
        layer(2, 20, 32, 4), llvm, relax_pipeline=pipeline(llvm, StitchConfig(max_operators=1))
    )
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, inputs)).numpy()
    assert np.abs(found - wanted).max() <= 2e-6 * np.abs(wanted).max()
