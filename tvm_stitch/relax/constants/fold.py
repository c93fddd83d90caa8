# SPDX-License-Identifier: Apache-2.0
"""FoldConstants: calls of constants become constants, computed with the arithmetic of kernels."""

from __future__ import annotations

import tvm
from tvm import relax, tirx

from ...repairs.schedule.sound_arithmetic import SoundArithmetic
from ...support.module_pass import module_pass
from .evaluated import with_evaluated_calls
from .uniform import computed_of_scalars, with_single_values


@module_pass
class FoldConstants:
    """Compute the values that depend on constants alone, with the arithmetic of kernels for a CPU.

    One library has all functions (:mod:`.evaluated`). TVM's ``FoldConstant`` computes what is left. It compiles
    functions for this machine as they are, so wrong results for NaN and for casts that wrap around would become
    constants. Calls of functions with a pattern get one element for a tensor of one
    value that is computed from scalars. Runs behind ``LegalizeOps``.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Fold constants in the module's Relax functions. Its PrimFuncs stay as they are."""
        sound = tvm.transform.Sequential([SoundArithmetic(on_device=False)])(mod)
        folded = relax.transform.FoldConstant()(with_evaluated_calls(sound))
        for gvar, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc):
                folded.update_func(gvar, func)
        return with_single_values(folded, computed_of_scalars(mod))
