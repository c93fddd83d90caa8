# SPDX-License-Identifier: Apache-2.0
"""Stitch a Relay module: outline, schedule, and leave to TVM the operators that cannot be scheduled."""

from __future__ import annotations

from dataclasses import replace

import tvm

from ..compute.templates import has_templates
from ..config import StitchConfig
from ..context import CompileContext
from ..driver import stitch_module
from ..records.decisions import Decisions, decisions_of, fresh, without_decisions
from ..records.recorder import Recorder
from ..support.resilient import Reasons
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
    context = CompileContext(target, config)
    if templates is None and has_templates(target, config):
        templates = Templates(target, config)
    passes = [
        StitchOps(config, target, reader=OpReader(target), templates=templates),
        ScheduleStitchOps(target, config, prefix, build),
        ComputeTemplates(target, config, prefix, build),
    ]
    stitched = stitch_module(mod, context, passes)
    recorder.note_target(target)
    recorder.take(_with_refused_templates(decisions_of(stitched)))
    return without_decisions(stitched)


def _with_refused_templates(decisions: Decisions) -> Decisions:
    """Return the decisions with the scopes that no template could compute recorded as TVM's, like other matmuls."""
    excluded: dict[str, Reasons] = {}
    computed = dict(decisions.computed)
    for scope, reasons in decisions.excluded.items():
        excluded[scope] = tuple((name, reason) for name, reason in reasons if name == scope)
        for name, reason in reasons:
            if name != scope:  # of ComputeTemplates: stitch ops have the names of their scopes
                computed[fresh(name, computed)] = f"TVM: {reason}"
    return replace(decisions, excluded=excluded, computed=computed)
