# SPDX-License-Identifier: Apache-2.0
"""explain: the kernels of a model, each with its plan, and the reason for every boundary between them."""

from __future__ import annotations

import logging
from functools import partial

import tvm
from tvm import relax

from ...compute.cpu.launch import launcher
from ...config import StitchConfig, checked_config
from ...device import device_model
from ...records.decisions import decisions_of, without_decisions
from ...records.recorder import Recorder
from ...report.report import Report
from ...support.failures import error_text, reraise_fatal
from ...support.interrupts import watched
from ...target import resolve_target
from ..pipeline import planning_passes
from ..rewriting.checked_module import checked_module
from ..rewriting.marked_names import MarkedNames, unmarked
from .completed import completed
from .measured import measured
from .model import model_report
from .source_operators import source_operators

logger = logging.getLogger(__name__)


def explain(
    mod: tvm.IRModule, target: tvm.target.Target | str = "native", config: StitchConfig | None = None
) -> Report:
    """Report how ``mod`` is stitched for ``target``. Nothing is compiled to machine code.

    Args:
        mod: a Relax IRModule, as :func:`tvm_stitch.compile` takes it.
        target: a TVM target or its string.
        config: stitching options.

    Raises:
        TypeError: when ``mod`` is no IRModule.
    """
    mod, target = checked_module(mod), resolve_target(target)
    config = checked_config(config)
    recorder = Recorder()
    marks: tvm.transform.Pass = MarkedNames()
    recorder.note_target(target)
    with target, watched():
        marked_mod = marks(mod)
        # TVM runs the last pass in every pipeline: functions that only reshape are not kernels.
        passes = [*planning_passes(target, config, marks), relax.transform.RewriteDataflowReshape()]
        lowered = tvm.transform.Sequential(passes)(marked_mod)
    sources, steps = source_operators(marked_mod)
    recorder.take(decisions_of(lowered))
    lowered = without_decisions(lowered)
    told = recorder.report()
    report = unmarked(told)
    report.threads = launcher.used(target, config)
    try:
        report.model = model_report(
            lowered, (sources, steps), recorder.flows, {k.name: k for k in report.kernels}, told.computed,
            report.left, target, device_model(target, config),
        )  # fmt: skip
    except Exception as err:  # a fault of this package must not cost the rest of the report
        reraise_fatal(err)
        logger.warning("the report has no graph: %s", error_text(err))
        return report
    report.complete = partial(completed, mod=mod, lowered=lowered, target=target)
    report.time = partial(measured, mod=mod, target=target, config=config)
    return report
