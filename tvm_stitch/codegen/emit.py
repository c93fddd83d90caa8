# SPDX-License-Identifier: Apache-2.0
"""Emit a plan for the kind of device that it was made for."""

from __future__ import annotations

from ..compat import PrimFunc
from ..plan.kernel import KernelPlan
from ..repairs.relay import repaired, repaired_on_cpu
from ..repairs.tir.exact_constants import exact_constants
from ..repairs.tir.extent_bounds import sound_extents
from ..repairs.tir.stored_constants import opaque_stored_constants
from ..repairs.tir.zero_divisors import without_folded_divisors, without_zero_divisors
from .gpu.kernel import emit_gpu


def emit(func: PrimFunc, plan: KernelPlan) -> PrimFunc:
    """Return the scheduled PrimFunc for ``func`` under ``plan``."""
    if plan.device.is_gpu:
        return sound_for_gpu(emit_gpu(func, plan))
    from .cpu.kernel import emit_cpu

    return sound_for_cpu(emit_cpu(func, plan))


def sound_for_cpu(func: PrimFunc) -> PrimFunc:
    """Rewrite a scheduled PrimFunc for a CPU into forms that TVM and the machine compute correctly."""
    return repaired_on_cpu(_guarded(without_zero_divisors(func)))


def sound_for_gpu(func: PrimFunc) -> PrimFunc:
    """Rewrite a scheduled PrimFunc for a GPU into forms that TVM compiles correctly."""
    return exact_constants(opaque_stored_constants(_guarded(without_zero_divisors(func))))


def _guarded(func: PrimFunc) -> PrimFunc:
    """Rewrite the conditions and extents of a scheduled PrimFunc into forms that TVM reads correctly."""
    return sound_extents(repaired(without_folded_divisors(func)))
