# SPDX-License-Identifier: Apache-2.0
"""FloatComparisons: a comparison of floats is computed, not derived."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from .. import compat
from ..codegen.arithmetic import DEVICE, FLOATS, HOST, Arithmetic
from ..codegen.opaque import as_c_type
from ..interrupts import carrying
from .rewriting import with_body, with_unscheduled

COMPARISONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)


@tvm.transform.module_pass(opt_level=0, name="FloatComparisons")
class FloatComparisons:
    """Keep TVM's simplifier from comparing floats in what is left to it.

    To it ``x == x`` is true and ``not a < b`` is ``b <= a``, which NaN makes false. Combiners of reductions stay as
    they are: TVM's schedules have to recognize them.

    Args:
        on_device: whether the module is for a GPU.
    """

    def __init__(self, on_device: bool):
        self.arithmetic: Arithmetic = DEVICE if on_device else HOST

    @carrying
    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite every PrimFunc that is not scheduled yet."""
        return with_unscheduled(mod, self._rewritten)

    def _rewritten(self, _name: str, func: Any) -> Any:
        return with_body(
            func, tvm_ffi.structural_map(func.body, (s_tir.SBlock, self._computed), order="post")
        )

    def _computed(self, block: Any) -> Any:
        if block.init is not None or not isinstance(block.body, tirx.BufferStore):
            return block
        changes = [(COMPARISONS, self._compared), (tirx.Not, self._negated)]
        body = tvm_ffi.structural_map(block.body, changes, order="post")
        return block if body.same_as(block.body) else compat.changed_block(block, body=body)

    def _compared(self, e: Any) -> Any:
        return self.arithmetic.binary(type(e), e.a, e.b) if compat.dtype_of(e.a) in FLOATS else e

    def _negated(self, e: Any) -> Any:
        if (
            self.arithmetic is DEVICE
        ):  # of a boolean that is read, too: schedules put comparisons in its place
            return tirx.Not(as_c_type(e.a, "bool"))
        return self.arithmetic.negated(e.a)
