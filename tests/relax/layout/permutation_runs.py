# SPDX-License-Identifier: Apache-2.0
"""The pass on permutations, and runs of its modules, for its tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from tests.choices import CHOICES
from tvm_stitch.relax.layout.permutations import PropagatePermutations
from tvm_stitch.relax.rewriting.movement import PERMUTE
from tvm_stitch.relax.rewriting.operators import operator_name


def propagated(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module behind the pass, without second names."""
    passes = [PropagatePermutations(CHOICES), relax.transform.CanonicalizeBindings()]
    return tvm.transform.Sequential([*passes, relax.transform.DeadCodeElimination()])(mod)


def permutes(mod: tvm.IRModule) -> list[Any]:
    blocks = mod["main"].body.blocks
    return [b.value for block in blocks for b in block.bindings if operator_name(b.value) == PERMUTE]


def run(mod: tvm.IRModule, *arrays: np.ndarray) -> list[np.ndarray]:
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    result = machine["main"](*map(tvm.runtime.tensor, arrays))
    return [each.numpy() for each in (result if hasattr(result, "__len__") else [result])]


def check(before: tvm.IRModule, after: tvm.IRModule) -> None:
    """Compare what the pass makes of a module with another module."""
    tvm.ir.assert_structural_equal(propagated(before), propagated_names(after))


def propagated_names(mod: tvm.IRModule) -> tvm.IRModule:
    """Return a module without second names, as the pass's result is compared."""
    return relax.transform.CanonicalizeBindings()(mod)


def stays(mod: tvm.IRModule) -> None:
    """Check that the pass changes nothing."""
    tvm.ir.assert_structural_equal(PropagatePermutations(CHOICES)(mod), mod)
