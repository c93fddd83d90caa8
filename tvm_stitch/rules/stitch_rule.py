# SPDX-License-Identifier: Apache-2.0
"""StitchRule: a dlight rule that schedules any stitchable PrimFunc with a plan of this package."""

from __future__ import annotations

from typing import Any

from tvm import s_tir
from tvm.s_tir import dlight as dl

from ..codegen.emit import emit
from ..config import StitchConfig
from ..device import device_model
from ..graph.reader import read
from ..plan.in_block import plan_in_block
from ..scope.node import NodeKind, kind_of
from ..support.failures import reason_of


class StitchRule(dl.ScheduleRule):
    """Schedule memory-intensive functions, no matter which pass fused them.

    Use it before other rules: ``dl.ApplyDefaultSchedule(StitchRule(), dl.gpu.Fallback())``. It declines (returns
    None) compute-intensive functions and functions that cannot be read. It also declines if every plan needs a grid
    barrier: a rule cannot give a function the scratch that a grid barrier uses. Blocks of its plans are independent
    or share a cluster.
    """

    def apply(self, func: Any, target: Any, _tunable: bool) -> Any:
        """Return the scheduled function as a Schedule, or None."""
        try:
            graph = read(func)
            if kind_of(graph) is not NodeKind.MEMORY:
                return None
            plan = plan_in_block(graph, device_model(target), StitchConfig(grid_barriers=False))
            return None if plan.scratch else s_tir.Schedule(emit(func, plan))
        except Exception as err:  # another rule may handle a function on which this one fails
            reason_of(err, "a function that StitchRule was given")
            return None
