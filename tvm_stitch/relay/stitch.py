# SPDX-License-Identifier: Apache-2.0
"""Stitch a Relay module: outline, schedule, and give back to TVM what cannot be scheduled."""

from __future__ import annotations

import logging
from typing import Any

import tvm

from ..config import StitchConfig
from ..plan.grid import GridPlan
from ..plan.plan import StitchPlan
from ..recorder import Recorder
from ..scope.identify import Boundary
from .lower import OpReader
from .schedule_stitch_ops import ScheduleStitchOps
from .stitch_ops import StitchOps

logger = logging.getLogger(__name__)

EMITTED = ("cuda", "llvm")
"""Kinds of target that stitch ops are emitted for; models for others compile as without stitching."""


def stitch(
    mod: tvm.IRModule,
    target: Any,
    config: StitchConfig,
    recorder: Recorder,
    prefix: str = "tvmgen_default",
    build: bool = True,
) -> tvm.IRModule:
    """The module with its stitch ops scheduled for ``target``; unchanged, with the reason recorded, where that fails.

    With ``build=False`` kernels are planned and emitted, but not compiled before TVM asks for them.

    Raises:
        StitchError: under ``StitchConfig(strict=True)``.
    """
    recorder.note_target(target)
    kind = target.kind.name
    if kind not in EMITTED:
        recorder.declined["all"] = f"kernels are emitted for {', '.join(EMITTED)}, not for {kind}"
        return mod
    reader = OpReader(target)
    refused: dict[str, str] = {}
    while True:
        boundaries: list[Boundary] = []
        left: dict[str, str] = {}
        plans: dict[str, StitchPlan | GridPlan] = {}
        declined: dict[str, str] = {}
        outline = StitchOps(config, target, boundaries, refused, left, reader)
        schedule = ScheduleStitchOps(target, config, plans, declined, prefix, build)
        try:
            result = tvm.transform.Sequential([outline, schedule])(mod)
        except Exception as err:
            if config.strict:
                raise
            recorder.declined["all"] = f"{type(err).__name__}: {err}"
            logger.warning("stitching failed; compiling without it: %s", recorder.declined["all"])
            return mod
        if not declined:
            break
        refused |= declined
    recorder.boundaries += boundaries
    recorder.plans |= plans
    recorder.declined |= refused | left
    return result
