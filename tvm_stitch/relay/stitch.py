# SPDX-License-Identifier: Apache-2.0
"""Stitch a Relay module: outline, schedule, and leave to TVM the operators that cannot be scheduled."""

from __future__ import annotations

from typing import Any

import tvm

from ..compute.templates import has_templates
from ..config import StitchConfig
from ..driver import Attempt, stitch_module
from ..records.recorder import Recorder, fresh
from .lower import OpReader
from .schedule_stitch_ops import ScheduleStitchOps
from .stitch_ops import StitchOps
from .templates.choice import Templates
from .templates.substitute import ComputeTemplates


def stitch(
    mod: tvm.IRModule,
    target: tvm.target.Target,
    config: StitchConfig,
    recorder: Recorder,
    prefix: str = "tvmgen_default",
    build: bool = True,
    templates: Templates | None = None,
) -> tvm.IRModule:
    """Return the module with its stitch ops scheduled for ``target``. Failing scopes are left to TVM, with the
    reason.

    With ``build=False`` kernels are planned and emitted, but not compiled before TVM asks for them. ``templates``
    are those for which layouts were chosen. By default they follow from the configuration.

    Raises:
        StitchError: under ``StitchConfig(strict=True)``.
    """
    reader = OpReader(target)
    if templates is None and has_templates(target, config):
        templates = Templates(target, config)
    refused: dict[str, str] = {}  # by scope, the functions that no template computes after all

    def passes(attempt: Attempt) -> list[Any]:
        return [
            StitchOps(
                config, target, attempt.boundaries, attempt.excluded, attempt.left, reader, attempt.scopes,
                templates, attempt.computed,
            ),
            ScheduleStitchOps(target, config, attempt.plans, attempt.declined, prefix, build),
            ComputeTemplates(target, config, attempt.computed, attempt.declined, refused, prefix, build),
        ]  # fmt: skip

    stitched = stitch_module(mod, target, config, recorder, passes)
    for scope, name in refused.items():  # TVM computes them, like other products without a template
        if scope in recorder.declined:
            recorder.computed[fresh(name, recorder.computed)] = f"TVM: {recorder.declined.pop(scope)}"
    return stitched
