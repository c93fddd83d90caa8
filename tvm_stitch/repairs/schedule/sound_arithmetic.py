# SPDX-License-Identifier: Apache-2.0
"""SoundArithmetic: write functions that TVM schedules with the arithmetic of stitched kernels.

Combiners of reductions on a GPU stay as they are, because TVM's schedules recognise them by their form. Their maximum
still loses NaN.

Fault: TVM's simplifier takes ``not a < b`` of floats for ``b <= a`` and ``x == x`` for true, which NaN makes wrong.
    TVM's CUDA C compares small integers as ints, and its rounding to bfloat16 on a CPU turns some NaNs into zeros.
Seen in: TVM 0.27.0
Input: ``R.logical_not(R.less(x, 1.0))`` with x = NaN, target cuda
Upstream: https://github.com/apache/tvm/issues/19579
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from ... import compat
from ...codegen.vector_math import keeping_nan, lower_math
from ...codegen.vector_math.extrema import is_nan
from ...graph.dtype import HALF
from ...support.module_pass import module_pass
from ..prim_funcs import with_body, with_unscheduled
from ..tir.arithmetic import DEVICE, FLOATS, HOST, is_small, wraps
from ..tir.device_math import FUNCTIONS
from ..tir.exact_constants import exact_constant
from ..tir.opaque import as_c_type

COMPARISONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)
EXTREMA = (tirx.Max, tirx.Min)
WIDENED = (tirx.Add, tirx.Sub, tirx.Mul)
"""Operations on small integers that C computes in ``int``."""
CANCELLING = ("tanh", "atanh")
"""Functions for which TVM's rule for LLVM is a formula that loses all digits of an operand near 0."""


@module_pass
class SoundArithmetic:
    """Give the functions that TVM schedules the arithmetic of stitched kernels.

    That is the arithmetic of :mod:`tvm_stitch.repairs.tir.arithmetic`. Combiners of reductions for a GPU stay as they
    are, because TVM's schedules recognise them by their form. CUDA C reads every bit of the constants. Functions keep
    their digits (:mod:`tvm_stitch.repairs.tir.device_math`). On a CPU they keep the digits of operands near 0.

    Args:
        on_device: whether the module is for a GPU.
    """

    def __init__(self, on_device: bool):
        self.on_device = on_device
        self.arithmetic = DEVICE if on_device else HOST

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        return with_unscheduled(mod, self._rewritten)

    def _rewritten(self, _name: str, func: Any) -> Any:
        return with_body(
            func, tvm_ffi.structural_map(func.body, (s_tir.SBlock, self._computed), order="post")
        )

    def _computed(self, block: Any) -> Any:
        if not isinstance(block.body, tirx.BufferStore):
            return block
        store = block.body
        value = self._sound(store.value) if block.init is None else self._combined(store)
        if value.same_as(store.value):
            return block
        return compat.changed_block(block, body=tirx.BufferStore(store.buffer, value, store.indices))

    def _combined(self, store: Any) -> Any:
        """Return the value that a reduction stores, with its new element in sound arithmetic."""
        value = store.value
        if compat.kind(value) not in ("Add", "Mul", "Max", "Min") or not compat.is_load(value.a):
            return value
        if compat.kind(value.b) == "Mul":  # a contraction, which schedules recognise by its form
            return value
        operand = self._sound(value.b)
        combined = value if operand.same_as(value.b) else type(value)(value.a, operand)
        return combined if self.on_device else self._extremum(combined)

    def _sound(self, value: Any) -> Any:
        changes: list[tuple[Any, Callable[[Any], Any]]] = [
            (COMPARISONS, self._compared),
            (tirx.Not, self._negated),
            (EXTREMA, self._extremum),
            (tirx.Cast, self._cast),
        ]
        if self.on_device:
            changes += [(WIDENED, self._wrapped), (tirx.BitwiseNot, self._complement)]
            changes += [(tirx.FloatImm, exact_constant), (tvm.ir.Call, self._called_on_device)]
        else:
            changes.append((tvm.ir.Call, self._called))
        return tvm_ffi.structural_map(value, changes, order="post")

    def _compared(self, e: Any) -> Any:
        return self.arithmetic.binary(type(e), e.a, e.b) if compat.dtype_of(e.a) in FLOATS else e

    def _extremum(self, e: Any) -> Any:
        dtype = compat.dtype_of(e)
        if dtype not in (*FLOATS, *HALF) or not isinstance(e, EXTREMA):
            return e
        if dtype in HALF:
            wide = type(e)(tirx.Cast("float32", e.a), tirx.Cast("float32", e.b))
            return self._rounded(tirx.Cast(dtype, self._extremum(wide)))
        if self.on_device:
            return self.arithmetic.binary(type(e), e.a, e.b)
        # A number comes first, because TVM's extremum returns a NaN that is its second operand.
        e = self.arithmetic.extremum(type(e), e.a, e.b)
        if compat.kind(e.a) == "FloatImm" and not math.isnan(float(e.a.value)):
            return e
        return keeping_nan(type(e), e.a, e.b)

    def _cast(self, e: Any) -> Any:
        return self.arithmetic.narrowed(e.value, compat.dtype_of(e)) if wraps(e) else self._rounded(e)

    def _rounded(self, e: Any) -> Any:
        """Return a cast to bfloat16 that keeps NaN on a CPU.

        TVM rounds there by adding to the bits, which makes zeros of NaNs whose bits are all set.
        """
        if self.on_device or compat.dtype_of(e) != "bfloat16" or compat.dtype_of(e.value) != "float32":
            return e
        return tirx.Cast(
            "bfloat16", tirx.Select(is_nan(e.value), compat.float_const(math.nan, "float32"), e.value)
        )

    def _negated(self, e: Any) -> Any:
        if self.on_device:  # also a boolean that is loaded, because schedules put comparisons in its place
            return tirx.Not(as_c_type(e.a, "bool"))
        return self.arithmetic.negated(e.a)

    def _called(self, e: Any) -> Any:
        if not compat.is_operator_call(e) or compat.call_name(e) not in CANCELLING:
            return e
        if compat.dtype_of(e) == "bfloat16":  # TVM's legalization of bfloat16 skips the values of Lets
            wide = tirx.Cast("float32", e.args[0])
            return self._rounded(
                tirx.Cast("bfloat16", tirx.call_pure_extern("float32", f"{compat.call_name(e)}f", wide))
            )
        operand = tirx.Var("x", compat.dtype_of(e.args[0]))
        return tirx.Let(operand, e.args[0], lower_math(compat.with_operands(e, [operand])))

    def _called_on_device(self, e: Any) -> Any:
        if not compat.is_operator_call(e) or not e.args:
            return e
        name = compat.call_name(e)
        return self.arithmetic.called(name, lambda *_: e, *e.args) if name in FUNCTIONS else e

    def _wrapped(self, e: Any) -> Any:
        return self.arithmetic.binary(type(e), e.a, e.b) if is_small(compat.dtype_of(e)) else e

    def _complement(self, e: Any) -> Any:
        return self.arithmetic.complement(type(e), e.a) if is_small(compat.dtype_of(e)) else e
