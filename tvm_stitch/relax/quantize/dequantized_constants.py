# SPDX-License-Identifier: Apache-2.0
"""DequantizedConstants: make floats of quantized weights and biases that no integer matmul takes."""

from __future__ import annotations

import ml_dtypes  # noqa: F401  # NumPy knows bfloat16 from here on
import numpy as np
import tvm
from tvm import relax

from ...support.module_pass import module_pass
from ..rewriting.calls import with_calls
from .parameters import DEQUANTIZE, constant_parts, dequantized


@module_pass
class DequantizedConstants:
    """Dequantize constants with NumPy.

    Templates and libraries take weights that are constants. ``FoldConstant`` comes too late for them, because it
    compiles and runs a function for each. Runs before layouts are chosen, with ``ConstantViews`` behind it.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        return with_calls(
            mod,
            (DEQUANTIZE,),
            lambda _builder, call: _folded(call),
            why="templates and libraries take weights that are constants",
        )


def _folded(call: relax.Call) -> relax.Expr:
    parts = constant_parts(call)
    if parts is None:
        return call
    dtype = str(call.ty.dtype)
    return relax.const(np.ascontiguousarray(dequantized(*parts).astype(dtype)), dtype)
