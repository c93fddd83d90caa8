# SPDX-License-Identifier: Apache-2.0
"""Stitch a Relay module: outline, schedule, and give back to TVM what cannot be scheduled."""

from __future__ import annotations

from typing import Any

import tvm

from ..attempts import Attempt, stitch_module
from ..config import StitchConfig
from ..recorder import Recorder
from .lower import OpReader
from .schedule_stitch_ops import ScheduleStitchOps
from .stitch_ops import StitchOps


def stitch(
    mod: tvm.IRModule,
    target: Any,
    config: StitchConfig,
    recorder: Recorder,
    prefix: str = "tvmgen_default",
    build: bool = True,
) -> tvm.IRModule:
    """The module with its stitch ops scheduled for ``target``; scopes that fail are left to TVM, with the reason.

    With ``build=False`` kernels are planned and emitted, but not compiled before TVM asks for them.

    Raises:
        StitchError: under ``StitchConfig(strict=True)``.
    """
    reader = OpReader(target)

    def passes(attempt: Attempt) -> list[Any]:
        return [
            StitchOps(
                config, target, attempt.boundaries, attempt.excluded, attempt.left, reader, attempt.scopes
            ),
            ScheduleStitchOps(target, config, attempt.plans, attempt.declined, prefix, build),
        ]

    return stitch_module(mod, target, config, recorder, passes)
