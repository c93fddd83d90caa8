# SPDX-License-Identifier: Apache-2.0
"""Stitch a module, and again without the scopes that fail, at whatever step: those go back to TVM, with the reason.

Where a step works on all scopes (merging, TVM's lowering of what is left, code generation) it is done again with
parts of them, in halves, until the scopes are found that make it fail. An error that is gone in a second run without
the pass context's instruments was an instrument's, and is raised.

A refused scope goes back whole, and TVM fuses its operators: dlight would schedule the merged function as one, slowly
or not at all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm

from .config import StitchConfig
from .plan.kernel import KernelPlan
from .records.recorder import Recorder, add_all
from .scope.identify import Boundary
from .support.bisect import bisect
from .support.errors import StitchError
from .support.failures import raise_where_strict, reason_of, reraise_fatal
from .support.pass_context import changed, instruments

logger = logging.getLogger(__name__)

EMITTED = ("cuda", "llvm")
"""Kinds of target that stitch ops are emitted for; models for others compile as without stitching."""


@dataclass
class Attempt:
    """What the passes of one attempt are told, ``excluded``, and what they tell.

    ``declined`` gives by function the reason why it could not be scheduled, ``scopes`` by function what names its scope
    in ``excluded`` (its own name, where there is no entry), ``left`` the calls that no scope could take, ``computed``
    what computes compute-intensive ones. Functions of matmuls with their epilogues are scopes here too.
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

    ``excluded`` gives those that are left to TVM, by name, with what to tell of them: the function's name and the
    reason. ``outlined`` names by function the scopes that were not.
    """

    excluded: dict[str, tuple[str, str]] = field(default_factory=dict)
    outlined: dict[str, str] = field(default_factory=dict)

    def without(self, found: dict[str, Exception], step: str) -> Scopes:
        """Exclude some more, whose presence makes a step fail."""
        names = {scope: name for name, scope in self.outlined.items()}
        more = {}
        for scope, err in found.items():
            name = names.get(scope, scope)
            more[scope] = name, f"{step}: {reason_of(err, name)}"
        return Scopes(self.excluded | more)


def stitch_module(
    mod: tvm.IRModule,
    target: Any,
    config: StitchConfig,
    recorder: Recorder,
    passes: Callable[[Attempt], list[Any]],
    scopes: Scopes | None = None,
) -> tvm.IRModule:
    """The module with its stitch ops scheduled, but for those of scopes that fail: their reasons are recorded.

    Args:
        mod: as the passes take it.
        target: what it is compiled for.
        config: says whether to raise instead.
        recorder: receives plans, refusals and boundaries.
        passes: the passes of an attempt, from operators to scheduled stitch ops.
        scopes: those to leave out; receives those that were outlined.

    Raises:
        StitchError: under ``StitchConfig(strict=True)``, from the error of the first scope that fails.
    """
    recorder.note_target(target)
    kind = target.kind.name
    scopes = scopes if scopes is not None else Scopes()
    if kind not in EMITTED:
        recorder.declined["all"] = f"kernels are emitted for {', '.join(EMITTED)}, not for {kind}"
        return mod
    refused: dict[str, str] = {}
    add_all(refused, scopes.excluded.values())
    attempt = Attempt(frozenset(scopes.excluded))
    while True:
        try:
            result = tvm.transform.Sequential(passes(attempt))(mod)
        except Exception as err:
            found = _culprits_of(attempt, err, mod, config, passes)
            if found is None:  # stitching fails with no scope at all: a fault of ours beside every scope
                recorder.declined["all"] = reason_of(err, "the whole model")
                return mod
            before = Scopes(outlined=attempt.scopes).without(found, "its function is not made")
            add_all(refused, before.excluded.values())
            attempt = Attempt(attempt.excluded | frozenset(found))
            continue
        if not attempt.declined:
            break
        add_all(refused, attempt.declined.items())
        again = {attempt.scopes.get(name, name) for name in attempt.declined}
        attempt = Attempt(attempt.excluded | again)
    recorder.boundaries += attempt.boundaries
    recorder.plans |= attempt.plans
    recorder.computed |= attempt.computed
    add_all(refused, attempt.left.items())
    recorder.declined |= refused
    scopes.outlined.update(attempt.scopes)
    return result


def _culprits_of(
    failed: Attempt,
    err: Exception,
    mod: tvm.IRModule,
    config: StitchConfig,
    passes: Callable[[Attempt], list[Any]],
) -> dict[str, Exception] | None:
    units = list(dict.fromkeys(failed.scopes.values()))

    def attempt(kept: Sequence[str]) -> None:
        again = Attempt(failed.excluded | (frozenset(units) - frozenset(kept)))
        tvm.transform.Sequential(passes(again))(mod)

    return culprits(units, err, attempt, config)


def culprits(
    units: Sequence[str], err: Exception, attempt: Callable[[Sequence[str]], Any], config: StitchConfig
) -> dict[str, Exception] | None:
    """The scopes that make a step fail which failed with ``err``, each with its error; None if it fails without any.

    Args:
        units: the scopes that there were.
        err: what the step raised.
        attempt: does the step again with some of the scopes stitched, and raises where it fails.
        config: says whether to raise instead.

    Raises:
        Exception: ``err`` itself where an instrument of the pass context raised it, or where it passes through.
        StitchError: under ``StitchConfig(strict=True)``, when there are such scopes.
    """

    def failure(kept: Sequence[str]) -> Exception | None:
        return _failure(lambda: attempt(kept))

    raise_if_of_instruments(err, lambda: attempt(units))
    if failure([]) is not None:
        return None
    raise_where_strict(err, "a scope", config.strict)
    return bisect(units, failure)


def raise_if_of_instruments(err: Exception, step: Callable[[], Any]) -> None:
    """Raise the error of a step again unless the step itself makes it.

    Args:
        err: what the step raised.
        step: does it again; asked only where the pass context has instruments, without them.

    Raises:
        Exception: ``err``, where an instrument of the pass context raised it, or where it passes through.
    """
    reraise_fatal(err)
    if isinstance(err, StitchError) or (instruments() and _failure(step) is None):
        raise err


def _failure(step: Callable[[], Any]) -> Exception | None:
    """What a step raises that is done without the pass context's instruments."""
    try:
        with changed([]):
            step()
    except Exception as err:
        reraise_fatal(err)
        return err
    return None


def attempt_with(
    step: Callable[[Recorder, Scopes], Any], scopes: Scopes, units: Sequence[str], kept: Sequence[str]
) -> Any:
    """Do a step on a module with no more than some of its scopes stitched.

    Args:
        step: is given where to record, and what to exclude.
        scopes: those that are excluded in any case.
        units: the scopes that there were.
        kept: those of them to stitch.
    """
    left = {scope: (scope, "") for scope in units if scope not in kept}
    return step(Recorder(), Scopes(scopes.excluded | left))
