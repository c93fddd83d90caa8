# SPDX-License-Identifier: Apache-2.0
"""Run phases of the pipeline again without the scopes that make them fail, or run TVM's own pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm

from ..context import CompileContext
from ..driver import scopes_after, stitch_module
from ..records.decisions import decided, decisions_of
from ..repairs.legalize.take import stock_pipeline
from ..support.failures import raise_where_strict, reason_of, reraise_fatal
from ..support.interrupts import carrying
from ..support.one_at_a_time import exclusively
from ..support.resilient import Reasons, resilient
from .backend import unfused_pipeline

STEP = "what is left does not compile beside it"
"""The reason recorded for a scope that TVM compiles only with its neighbours."""


def stitched_without_failing_scopes(context: CompileContext, passes: list[Any]) -> Any:
    """Return a pass that stitches a module, and again without the scopes that cannot be scheduled.

    Args:
        context: the target and the options.
        passes: from operators to scheduled stitch ops. The first one outlines the scopes.
    """

    @tvm.transform.module_pass(opt_level=0, name="Stitch")
    @carrying
    def run(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return stitch_module(mod, context, passes)

    return run


def lowered_without_failing_scopes(
    mod: tvm.IRModule,
    context: CompileContext,
    passes: Callable[[], list[Any]],
    stitching: Callable[[], list[Any]],
) -> tvm.IRModule:
    """Return the lowered module with its decisions, if necessary without the scopes that make lowering fail.

    Args:
        mod: the module as it was imported.
        context: the target and the options.
        passes: makes the passes that lower the module.
        stitching: makes those of them that outline the scopes.
    """

    def step(excluded: Mapping[str, Reasons]) -> tvm.IRModule:
        return tvm.transform.Sequential(passes())(decided(mod, excluded=excluded))

    return resilient(
        step,
        lambda excluded: scopes_after(stitching(), decided(mod, excluded=excluded)),
        strict=context.config.strict,
        because=STEP,
        excluded=decisions_of(mod).excluded,
        otherwise=lambda err: _without_stitching(mod, context, err),
    )


def _without_stitching(mod: tvm.IRModule, context: CompileContext, err: Exception) -> tvm.IRModule:
    """Return the result of TVM's own pipeline, for a module that fails here even without any stitch op.

    If that pipeline fails as well, it runs once more without TVM's fusion, which fails for some extents.

    Raises:
        Exception: ``err``, if TVM's own pipeline fails as well.
    """
    result = None
    for pipeline in (stock_pipeline, unfused_pipeline):
        try:
            result = exclusively([pipeline(context.target)], "StockPipeline")(mod)
            break
        except Exception as again:
            reraise_fatal(again)
    if result is None:
        raise err from None
    raise_where_strict(err, "the model", context.config.strict)
    reason = f"what is left does not compile alone: {reason_of(err, 'the whole model')}"
    return decided(result, left={"all": reason})
