# SPDX-License-Identifier: Apache-2.0
"""Stitch a module. If scopes fail at any step, stitch it again without them, and leave them to TVM with the reason.

A refused scope goes back as a whole, and TVM fuses its operators. TVM's dlight would schedule the merged function as
one, slowly or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import tvm

from .config import StitchConfig
from .plan.kernel import KernelPlan
from .records.recorder import Recorder, add_all
from .scope.identify import Boundary
from .support.failures import reason_of
from .support.resilient import Reasons, UnitsFailed, resilient

EMITTED = ("cuda", "llvm")
"""Kinds of target for which stitch ops are emitted. Models for others compile without stitching."""


@dataclass
class Attempt:
    """Inputs and results of one stitching attempt. ``excluded`` names the scopes to leave to TVM.

    ``declined`` holds by function the reason why it could not be scheduled. ``scopes`` holds by function its
    scope's name in ``excluded``, which is the function's name if there is no entry. ``left`` holds the calls that
    no scope could take. ``computed`` says what computes compute-intensive calls. Functions of matmuls with their
    epilogues are scopes here too.
    """

    excluded: frozenset[str] = frozenset()
    boundaries: list[Boundary] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    scopes: dict[str, str] = field(default_factory=dict)
    plans: dict[str, KernelPlan] = field(default_factory=dict)
    declined: dict[str, str] = field(default_factory=dict)
    computed: dict[str, str] = field(default_factory=dict)


@dataclass
class Scopes:
    """The scopes of a module over several compiles of it.

    ``excluded`` holds by name the scopes that are left to TVM, with the reasons for reports. ``outlined`` names by
    function the other scopes.
    """

    excluded: Mapping[str, Reasons] = field(default_factory=dict)
    outlined: dict[str, str] = field(default_factory=dict)

    def names(self) -> dict[str, str]:
        """Return the functions of the outlined scopes by the scopes' names."""
        return {scope: name for name, scope in self.outlined.items()}


def stitch_module(
    mod: tvm.IRModule,
    target: tvm.target.Target,
    config: StitchConfig,
    recorder: Recorder,
    passes: Callable[[Attempt], list[Any]],
    scopes: Scopes | None = None,
) -> tvm.IRModule:
    """Return the module with its stitch ops scheduled, except for scopes that fail, whose reasons are recorded.

    Args:
        mod: a module in the form that the passes take.
        target: the module's target.
        config: says whether to raise instead.
        recorder: receives plans, refusals and boundaries.
        passes: returns the passes of an attempt, from operators to scheduled stitch ops.
        scopes: the scopes to leave out. It receives those that were outlined.

    Raises:
        StitchError: under ``StitchConfig(strict=True)``, from the error of the first scope that fails.
    """
    recorder.note_target(target)
    kind = target.kind.name
    scopes = scopes if scopes is not None else Scopes()
    if kind not in EMITTED:
        recorder.declined["all"] = f"kernels are emitted for {', '.join(EMITTED)}, not for {kind}"
        return mod
    attempt = Attempt()

    def step(excluded: Mapping[str, Reasons]) -> tuple[tvm.IRModule, Mapping[str, Reasons] | None]:
        nonlocal attempt
        attempt = Attempt(frozenset(excluded))
        result = tvm.transform.Sequential(passes(attempt))(mod)
        failed: dict[str, Reasons] = {}
        for name, reason in attempt.declined.items():
            scope = attempt.scopes.get(name, name)
            failed[scope] = (*failed.get(scope, ()), (name, reason))
        if failed:
            raise UnitsFailed(failed)
        return result, excluded

    def whole(err: Exception) -> tuple[tvm.IRModule, None]:
        """Return the unstitched module after an error that no scope causes, which is a fault of this package."""
        recorder.declined["all"] = reason_of(err, "the whole model")
        return mod, None

    result, excluded = resilient(
        step,
        lambda: Scopes(outlined=attempt.scopes).names(),
        strict=config.strict,
        because="its function is not made",
        excluded=scopes.excluded,
        otherwise=whole,
    )
    if excluded is None:
        return result
    refused: dict[str, str] = {}
    for reasons in excluded.values():
        add_all(refused, reasons)
    recorder.boundaries += attempt.boundaries
    recorder.plans |= attempt.plans
    recorder.computed |= attempt.computed
    add_all(refused, attempt.left.items())
    recorder.declined |= refused
    scopes.outlined.update(attempt.scopes)
    return result
