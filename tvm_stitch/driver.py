# SPDX-License-Identifier: Apache-2.0
"""Stitch a module, and again without the scopes that fail at any step.

TVM compiles a scope that fails, and the decisions record the reason. A refused scope goes back whole, and TVM fuses
its operators: dlight would schedule the merged function as one, slowly or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tvm

from .context import CompileContext
from .records.decisions import decided, decisions_of
from .support.failures import reason_of, reraise_fatal
from .support.pass_context import changed
from .support.resilient import Reasons, UnitsFailed, resilient

EMITTED = ("cuda", "llvm")
"""Kinds of target that stitch ops are emitted for. Models for other kinds compile as without stitching."""


def stitch_module(
    mod: tvm.IRModule, context: CompileContext, passes: Sequence[tvm.transform.Pass]
) -> tvm.IRModule:
    """Return the module with its stitch ops scheduled, except for scopes that fail. Its decisions have the reasons.

    Args:
        mod: the module that the passes take. Scopes that its decisions exclude are left to TVM.
        context: the target and the options.
        passes: the passes from operators to scheduled stitch ops. The first one outlines the scopes.

    Raises:
        StitchError: under ``StitchConfig(strict=True)``, from the error of the first scope that fails.
    """
    if context.kind not in EMITTED:
        return decided(
            mod, left={"all": f"kernels are emitted for {', '.join(EMITTED)}, not for {context.kind}"}
        )

    def step(excluded: Mapping[str, Reasons]) -> tvm.IRModule:
        stitched = tvm.transform.Sequential(passes)(decided(mod, excluded=excluded))
        decisions = decisions_of(stitched)
        failed: dict[str, Reasons] = {}
        for name, reason in decisions.declined.items():
            scope = decisions.outlined.get(name, name)
            failed[scope] = (*failed.get(scope, ()), (name, reason))
        if failed:
            raise UnitsFailed(failed)
        return stitched

    return resilient(
        step,
        lambda excluded: scopes_after(passes[:1], decided(mod, excluded=excluded)),
        strict=context.config.strict,
        because="its function is not made",
        excluded=decisions_of(mod).excluded,
        # Stitching fails even without any scope: a fault of this package that no scope causes.
        otherwise=lambda err: decided(mod, left={"all": reason_of(err, "the whole model")}),
    )


def scopes_after(passes: Sequence[tvm.transform.Pass], mod: tvm.IRModule) -> dict[str, str]:
    """Return the scopes that passes outline, with the names of their functions, or an empty dict if the passes fail.

    Instruments of the pass context do not see these passes: they have seen them in the step that failed.
    """
    try:
        with changed([]):
            return decisions_of(tvm.transform.Sequential(passes)(mod)).names()
    except Exception as err:
        reraise_fatal(err)
        return {}
