# SPDX-License-Identifier: Apache-2.0
"""The compilation pipeline with stitching: one pass for ``tvm.compile``, and lists of passes up to some phase.

It runs the table of :mod:`.pass_table`.
"""

from __future__ import annotations

import tvm

from ..config import StitchConfig, checked_config
from ..context import CompileContext
from ..records.decisions import decisions_of, without_decisions
from ..records.recorder import Recorder
from ..support.interrupts import carrying, watched
from ..target import resolve_target
from .backend import check_build
from .dump import asked_dump
from .pass_table import LINKING, LOWERED, PHASES, PLANNING, SCHEDULES, STITCH, STITCHED
from .phases import Phase, numbers_of, passes_of, table
from .retry import lowered_without_failing_scopes
from .rewriting.contents import remembering

CHECKS_KERNELS = True
"""True if :func:`pipeline` lowers each kernel once, to leave those to TVM on which TVM's lowering fails."""


def pipeline(
    target: tvm.target.Target | str, config: StitchConfig | None = None, recorder: Recorder | None = None
) -> tvm.transform.Pass:
    """Return a pass for ``tvm.compile(mod, target, relax_pipeline=...)``.

    A scope is left to TVM if TVM compiles the module without it, but not with it. Each kernel is lowered once, so
    that a kernel on which TVM's lowering fails is left to TVM. ``tvm_stitch.compile`` does that only for a module
    that fails, and takes less time.

    Args:
        target: a Target, or a string that ``tvm.target.Target`` takes.
        config: options. The defaults suit most models.
        recorder: receives plans, refusals and boundaries.

    Raises (the pass):
        StitchError: under ``StitchConfig(strict=True)``, for the first operator or scope that is left to TVM.
        ValueError: when the module is compiled for another kind of target. Also when a dump is asked for after a name
            that is neither a phase nor a pass.
    """
    context = CompileContext(resolve_target(target), checked_config(config), CHECKS_KERNELS)

    @tvm.transform.module_pass(opt_level=0, name="StitchPipeline")
    @carrying
    def run(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        made = lowered(mod, context)
        if recorder is not None:
            recorder.note_target(context.target)
            recorder.take(decisions_of(made))
        return without_decisions(made)

    return run


def lowered(mod: tvm.IRModule, context: CompileContext) -> tvm.IRModule:
    """Return the module that TVM generates code from, with its decisions."""
    check_build(context.target)
    with context.target, watched(), remembering():
        made = lowered_without_failing_scopes(
            mod, context, lambda: _passes(LOWERED, context), lambda: _passes(STITCHED, context)
        )
        return tvm.transform.Sequential(_passes((LINKING,), context))(made)


def _passes(
    phases: tuple[Phase, ...], context: CompileContext, before_each: tvm.transform.Pass | None = None
) -> list[tvm.transform.Pass]:
    return passes_of(phases, context, asked_dump(numbers_of(PHASES)), before_each)


def stitch_passes(target: tvm.target.Target, config: StitchConfig) -> list[tvm.transform.Pass]:
    """Return the passes from operators to scheduled stitch ops, and TVM's fusion of the other operators.

    Args:
        target: a TVM target.
        config: stitching options.
    """
    return _passes(STITCH, CompileContext(target, config))


def planning_passes(
    target: tvm.target.Target, config: StitchConfig, before_each: tvm.transform.Pass | None = None
) -> list[tvm.transform.Pass]:
    """Return the passes from an imported model to kernels and functions that TVM schedules.

    Args:
        target: a TVM target.
        config: stitching options.
        before_each: a pass that runs in front of each of them.
    """
    return _passes(PLANNING, CompileContext(target, config), before_each)


def default_schedules(target: tvm.target.Target) -> list[tvm.transform.Pass]:
    """Return the passes that schedule functions that are not stitched. On CPUs they only repair them."""
    return _passes((SCHEDULES,), CompileContext(target))


def passes_table(target: tvm.target.Target | str | None = None, config: StitchConfig | None = None) -> str:
    """Return the table of the pipeline's passes as text.

    Args:
        target: a Target or its string: rows that do not run for it begin with ``-``. None marks no row.
        config: the options that conditions ask about.
    """
    if target is None:
        return table(PHASES)
    return table(PHASES, CompileContext(resolve_target(target), checked_config(config)))
