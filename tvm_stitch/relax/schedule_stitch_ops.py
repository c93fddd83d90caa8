# SPDX-License-Identifier: Apache-2.0
"""ScheduleStitchOps: plan and emit every stitch op that FuseTIR has merged into one PrimFunc."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from ..codegen.emit import emit
from ..config import StitchConfig, checked_config
from ..device import device_model, resolve_target
from ..failures import raise_where_strict, reason_of
from ..graph.reader import read
from ..interrupts import carrying, check
from ..plan.choose import choose_plan
from ..plan.grid_plan import GridPlan
from ..plan.plan import StitchPlan
from .stitch_ops import STITCH_ATTR


@tvm.transform.module_pass(opt_level=0, name="ScheduleStitchOps")
class ScheduleStitchOps:
    """Replace the PrimFunc of every stitch op by its scheduled kernel.

    Functions marked ``tvm_stitch.stitch_op`` are planned and emitted for ``target``; ``plans`` and ``declined``, if
    given, receive each function's plan, or the reason why it has none.

    Raises:
        StitchError: under ``StitchConfig(strict=True)``, when a stitch op cannot be scheduled.
    """

    def __init__(
        self,
        target: Any,
        config: StitchConfig | None = None,
        plans: dict[str, StitchPlan | GridPlan] | None = None,
        declined: dict[str, str] | None = None,
    ):
        self.target = resolve_target(target)
        self.config = checked_config(config)
        self.plans = plans
        self.declined = declined

    @carrying
    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Schedule the marked functions."""
        device = device_model(self.target, self.config)
        updates = {}
        for gvar, func in mod.functions_items():
            if not isinstance(func, tirx.PrimFunc) or not (func.attrs and STITCH_ATTR in func.attrs):
                continue
            if "tirx.is_scheduled" in func.attrs:
                continue
            check()
            try:
                plan = choose_plan(read(func, gvar.name_hint), device, self.config)
                updates[gvar] = emit(func, plan)
            except Exception as err:  # a fault of ours or of TVM's must not cost the user a working model
                self._decline(gvar.name_hint, err)
                continue
            if self.plans is not None:
                self.plans[gvar.name_hint] = plan
        if not updates:
            return mod
        mod = mod.clone()
        for gvar, func in updates.items():
            mod.update_func(gvar, func)
        return mod

    def _decline(self, name: str, err: Exception) -> None:
        raise_where_strict(err, name, self.config.strict)
        reason = reason_of(err, name)
        if self.declined is not None:
            self.declined[name] = reason
