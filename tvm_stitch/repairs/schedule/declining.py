# SPDX-License-Identifier: Apache-2.0
"""ApplyDecliningRules: apply dlight's schedule rules, and ask the next rule if one fails.

The next rule is asked down to ``Fallback``, which schedules every function. Schedules of symbolic functions are
lowered to device code beforehand, because some of them keep a symbolic tile size that code generation refuses.

Fault: dlight's rules raise for some matrix-vector products and for convolutions of one pixel, so TVM does not
    compile the model. Other schedules lose the condition of a reduction across threads, and write up to 15
    elements beyond the result.
Seen in: TVM 0.27.0
Input: ``R.matmul`` of (3, 7, 31) and (3, 31, 1) float32, target cuda
Upstream: https://github.com/apache/tvm/issues/20047
"""

from __future__ import annotations

import logging
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from ... import compat
from ...support.failures import error_text, reraise_fatal
from ...support.module_pass import module_pass
from ..lowering import lowered
from ..prim_funcs import REDUCED, with_unscheduled
from .register_reads import foreign_read

logger = logging.getLogger(__name__)


class Unlowerable(Exception):
    """TVM cannot make a kernel of a schedule."""


@module_pass
class ApplyDecliningRules:
    """dlight's ``ApplyDefaultSchedule`` in which a rule that fails declines, so that the next one is asked.

    A function that no rule schedules stays as it is, unless a rule failed.

    Args:
        rules: in the order in which they are asked.
        declined: receives, by function name and rule, why the rule failed.

    Raises:
        Exception: the first failure for a function, if rules failed and no other rule schedules it.
    """

    def __init__(self, *rules: Any, declined: dict[str, dict[str, str]] | None = None):
        self.rules = rules
        self.declined = declined if declined is not None else {}

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Schedule every PrimFunc that is not scheduled yet."""
        return with_unscheduled(mod, self._rewritten)

    def _rewritten(self, name: str, func: Any) -> Any:
        target = func.attrs.get("target") or tvm.target.Target.current(allow_none=False)
        scheduled = self._scheduled(name, func, target)
        return None if scheduled is None else scheduled.with_attr("tirx.is_scheduled", True)

    def _scheduled(self, name: str, func: Any, target: Any) -> Any:
        first: Exception | None = None
        for rule in self.rules:
            try:
                schedules = rule.apply(func, target, False)
                if schedules is None:
                    continue
                (schedule,) = [schedules] if isinstance(schedules, s_tir.Schedule) else schedules
                scheduled = schedule.mod["main"]
                _check(func, scheduled, target)
                return scheduled
            except Exception as err:
                reraise_fatal(err)
                first = first or err
                self._note(name, type(rule).__name__, err)
        if first is not None:
            raise first
        return None

    def _note(self, name: str, rule: str, err: Exception) -> None:
        reason = str(err) if isinstance(err, Unlowerable) else f"{type(err).__name__}: {error_text(err)}"
        self.declined.setdefault(name, {})[rule] = reason
        logger.info("%s does not schedule %s: %s", rule, name, reason)


def _check(func: Any, scheduled: Any, target: Any) -> None:
    """Check that TVM makes sound kernels of a schedule.

    Raises:
        Unlowerable: when it does not.
    """
    _check_reductions(scheduled)
    if (foreign := foreign_read(scheduled)) is not None:
        raise Unlowerable(f"threads read elements of {foreign} in registers that others wrote")
    if (refused := _refused_reduction(scheduled)) is not None:
        raise Unlowerable(f"TVM does not lower its reduction across threads: {refused}")
    _check_allocations(func, scheduled, target)


def _check_reductions(scheduled: Any) -> None:
    """Check that threads that compute nothing write nothing.

    TVM 0.27 forgets the condition of a block that reduces across threads when it writes the result. That does no harm
    to a result in registers. A matrix-vector product has its result in memory, with rows that are not a multiple of 16.

    Raises:
        Unlowerable: when a kernel would write beyond its result.
    """
    threads: set[Any] = set()

    def bind(loop: Any) -> None:
        if loop.kind == tirx.ForKind.THREAD_BINDING:
            threads.add(loop.loop_var)

    def visit(realize: Any) -> None:
        block = realize.block
        reduced: set[Any] = set()
        for axis, value in zip(block.iter_vars, realize.iter_values):
            if axis.iter_type == REDUCED:
                reduced |= compat.free_vars(value)
        others = compat.free_vars(realize.predicate) - reduced
        in_memory = any(region.source.scope() == "global" for region in block.writes)
        if reduced & threads and others and in_memory:
            raise Unlowerable(f"the condition of {block.name_hint} is lost where threads reduce together")

    tvm_ffi.structural_walk(scheduled.body, (tirx.For, bind), order="pre")
    tvm_ffi.structural_walk(scheduled.body, (s_tir.SBlockRealize, visit), order="pre")


def _refused_reduction(scheduled: Any) -> str | None:
    """Return the error of TVM's lowering of reductions across threads, or None if it takes the schedule."""
    try:
        s_tir.transform.LowerCrossThreadReduction()(tvm.IRModule({"main": scheduled}))
    except Exception as err:
        reraise_fatal(err)
        return error_text(err)
    return None


def _check_allocations(func: Any, scheduled: Any, target: Any) -> None:
    """Lower the schedule of a function with symbolic extents as far as device code, to see whether TVM can.

    The rules' tiles for symbolic extents depend on how far TVM's simplifier comes. Tiles may keep a symbolic size.

    Raises:
        Unlowerable: when a kernel would have to allocate an array of unknown size.
    """
    buffers = [buffer for _, buffer in compat.prim_func_params(func) if buffer is not None]
    if all(isinstance(extent, tirx.IntImm) for buffer in buffers for extent in buffer.shape):
        return
    allocations: list[Any] = []
    for kernel in lowered(scheduled, target):
        tvm_ffi.structural_walk(
            kernel.body, (tirx.AllocBuffer, lambda n: allocations.append(n.buffer)), order="post"
        )
    for buffer in allocations:
        if buffer.scope() != "shared.dyn" and not all(isinstance(e, tirx.IntImm) for e in buffer.shape):
            raise Unlowerable(f"{buffer.name} in {buffer.scope()} memory has a size known at run time only")
