# SPDX-License-Identifier: Apache-2.0
"""Run phases of the pipeline again without the scopes that make them fail, or TVM's own pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import tvm

from ..config import StitchConfig
from ..driver import Attempt, Scopes, stitch_module
from ..records.recorder import Recorder
from ..repairs.legalize.take import stock_pipeline
from ..support.failures import raise_where_strict, reason_of, reraise_fatal
from ..support.interrupts import carrying
from ..support.one_at_a_time import exclusively
from ..support.resilient import Reasons, resilient
from .context import CompileContext
from .stitch.dataflow import flow_of

STEP = "what is left does not compile beside it"
"""What is told of a scope that TVM compiles only with its neighbours."""


def stitched_without_failing_scopes(
    context: CompileContext, passes: Callable[[CompileContext], list[Any]]
) -> Any:
    """Return a pass that stitches a module, and again without the scopes that cannot be scheduled.

    Args:
        context: of the compile.
        passes: makes the passes of one attempt.
    """
    known: dict[Any, Any] = {}

    def of(attempt: Attempt) -> list[Any]:
        return passes(replace(context, attempt=attempt, known=known))

    @tvm.transform.module_pass(opt_level=0, name="Stitch")
    @carrying
    def run(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        known.clear()
        result = stitch_module(mod, context.target, context.config, context.recorder, of, context.scopes)
        last = {block: found for (block, _excluded), found in known.items()}
        context.recorder.flows += [flow_of(view, found) for view, found in last.values()]
        return result

    return run


def lowered_without_failing_scopes(
    mod: tvm.IRModule,
    target: Any,
    config: StitchConfig,
    recorder: Recorder,
    scopes: Scopes,
    lowered: Callable[[Recorder, Scopes], tvm.IRModule],
) -> tvm.IRModule:
    """Return the lowered module, where needed without the scopes that make lowering fail.

    Args:
        mod: the module as it was imported.
        target: a TVM target.
        config: says whether to raise instead.
        recorder: receives plans, refusals and boundaries.
        scopes: those to leave to TVM; receives those that are outlined.
        lowered: lowers the module.
    """
    before, chosen, records = recorder.copy(), scopes, recorder

    def step(excluded: Mapping[str, Reasons]) -> tvm.IRModule:
        nonlocal chosen, records
        chosen, records = Scopes(excluded), before.copy()
        return lowered(records, chosen)

    def stock(err: Exception) -> tvm.IRModule:
        nonlocal records
        records = before.copy()
        return _without_stitching(mod, target, config, records, err)

    result = resilient(
        step,
        lambda: chosen.names(),
        strict=config.strict,
        because=STEP,
        excluded=scopes.excluded,
        otherwise=stock,
    )
    recorder.return_to(records)
    scopes.excluded, scopes.outlined = chosen.excluded, chosen.outlined
    return result


def _without_stitching(
    mod: tvm.IRModule, target: Any, config: StitchConfig, recorder: Recorder, err: Exception
) -> tvm.IRModule:
    """What TVM's own pipeline makes of a module that ours fails on with no stitch op in it; else the error itself."""
    try:
        result = exclusively([stock_pipeline(target)], "StockPipeline")(mod)
    except Exception as again:
        reraise_fatal(again)
        raise err from None
    raise_where_strict(err, "the model", config.strict)
    recorder.note_target(target)
    recorder.declined["all"] = f"what is left does not compile alone: {reason_of(err, 'the whole model')}"
    return result
