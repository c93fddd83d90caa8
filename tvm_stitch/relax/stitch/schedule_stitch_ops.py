# SPDX-License-Identifier: Apache-2.0
"""ScheduleStitchOps: plan and emit every stitch op that FuseTIR has merged into one PrimFunc.

TVM's simplifier, its analyses and its elimination of common subexpressions fail on some expressions with symbolic
extents. They fail after the pipeline, which is too late to repair a kernel. So each stitched kernel is lowered once
here, and one that fails is left to TVM with the reason. Callers that handle the failure themselves turn this off.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from ...codegen.emit import emit
from ...config import StitchConfig, checked_config
from ...device import device_model
from ...graph.reader import read
from ...plan.choose import choose_plan
from ...plan.kernel import KernelPlan
from ...records.decisions import decided
from ...repairs.lowering import lowered
from ...repairs.prim_funcs import with_unscheduled
from ...support.failures import Refusal, error_text, raise_where_strict, reason_of, reraise_fatal
from ...support.interrupts import check
from ...support.module_pass import module_pass
from ...target import resolve_target
from .stitch_ops import STITCH_ATTR


@module_pass
class ScheduleStitchOps:
    """Replace the PrimFunc of every stitch op by its scheduled kernel.

    Functions marked ``tvm_stitch.stitch_op`` are planned and emitted for ``target``. The module's decisions
    (``tvm_stitch.records.decisions``) receive each function's plan, or the reason why it has none.

    Args:
        target: a TVM target or its string.
        config: options. The defaults suit most models.
        check: whether each kernel is lowered once, so that a kernel on which TVM's lowering fails is declined. False
            saves half the time of lowering.

    Raises:
        StitchError: under ``StitchConfig(strict=True)``, when a stitch op cannot be scheduled.
    """

    def __init__(self, target: tvm.target.Target, config: StitchConfig | None = None, check: bool = True):
        self.target = resolve_target(target)
        self.config = checked_config(config)
        self.check = check

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Schedule the marked functions."""
        device = device_model(self.target, self.config)
        plans: dict[str, KernelPlan] = {}
        declined: dict[str, str] = {}

        def scheduled(name: str, func: tirx.PrimFunc) -> Any:
            if not (func.attrs and STITCH_ATTR in func.attrs):
                return None
            check()
            try:
                plan = choose_plan(read(func, name), device, self.config)
                kernel = emit(func, plan)
                if self.check:
                    self._check(kernel)
            except Exception as err:  # a fault of this package or of TVM must not cost a working model
                raise_where_strict(err, name, self.config.strict)
                declined[name] = reason_of(err, name)
                return None
            plans[name] = plan
            return kernel

        return decided(with_unscheduled(mod, scheduled), plans=plans, declined=declined)

    def _check(self, kernel: Any) -> None:
        """Check that TVM lowers a kernel: its simplifier and analyses fail on some expressions.

        Raises:
            Refusal: when it does not.
        """
        try:
            lowered(kernel, self.target)
        except Exception as err:
            reraise_fatal(err)
            raise Refusal(f"TVM does not lower its kernel: {error_text(err)}") from err
