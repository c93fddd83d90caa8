# SPDX-License-Identifier: Apache-2.0
"""Stitch a module, and once more without the scopes that could not be scheduled: those go back to TVM whole."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import tvm

from .config import StitchConfig
from .plan.grid_plan import GridPlan
from .plan.plan import StitchPlan
from .recorder import Recorder
from .scope.identify import Boundary

logger = logging.getLogger(__name__)

EMITTED = ("cuda", "llvm")
"""Kinds of target that stitch ops are emitted for; models for others compile as without stitching."""


@dataclass
class Attempt:
    """What the passes of one attempt are told, ``excluded``, and what they tell.

    ``declined`` gives by function the reason why it could not be scheduled, ``scopes`` by function what names its scope
    in ``excluded`` (its own name, where there is no entry), ``left`` the calls that no scope could take.
    """

    excluded: frozenset[str] = frozenset()
    boundaries: list[Boundary] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    scopes: dict[str, str] = field(default_factory=dict)
    plans: dict[str, StitchPlan | GridPlan] = field(default_factory=dict)
    declined: dict[str, str] = field(default_factory=dict)


def stitch_module(
    mod: tvm.IRModule,
    target: Any,
    config: StitchConfig,
    recorder: Recorder,
    passes: Callable[[Attempt], list[Any]],
) -> tvm.IRModule:
    """The module with its stitch ops scheduled; unchanged, with the reason recorded, where that fails.

    Args:
        mod: as the passes take it.
        target: what it is compiled for.
        config: says whether to raise instead.
        recorder: receives plans, refusals and boundaries.
        passes: the passes of an attempt, from operators to scheduled stitch ops.

    Raises:
        StitchError: under ``StitchConfig(strict=True)``.
    """
    recorder.note_target(target)
    kind = target.kind.name
    if kind not in EMITTED:
        recorder.declined["all"] = f"kernels are emitted for {', '.join(EMITTED)}, not for {kind}"
        return mod
    refused: dict[str, str] = {}
    attempt = Attempt()
    while True:
        try:
            result = tvm.transform.Sequential(passes(attempt))(mod)
        except Exception as err:
            if config.strict:
                raise
            recorder.declined["all"] = f"{type(err).__name__}: {err}"
            logger.warning("stitching failed; compiling without it: %s", recorder.declined["all"])
            return mod
        if not attempt.declined:
            break
        refused |= attempt.declined
        again = {attempt.scopes.get(name, name) for name in attempt.declined}
        attempt = Attempt(attempt.excluded | again)
    recorder.boundaries += attempt.boundaries
    recorder.plans |= attempt.plans
    recorder.declined |= refused | attempt.left
    return result
