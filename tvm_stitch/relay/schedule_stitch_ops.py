# SPDX-License-Identifier: Apache-2.0
"""The pass ScheduleStitchOps: plan and emit every stitch op of a Relay module, and pass it on as external code."""

from __future__ import annotations

import re
from contextlib import nullcontext
from typing import Any

import tvm
from tvm import relay

from ..codegen.emit import emit
from ..compat.identifiers import identifier
from ..config import StitchConfig, checked_config
from ..device import device_model
from ..plan.choose import choose_plan
from ..plan.kernel import KernelPlan
from ..records.decisions import decided, fresh
from ..support.failures import raise_where_strict, reason_of
from ..support.interrupts import check
from ..support.module_pass import module_pass
from ..target import resolve_target
from .cuda_source import fixed_cuda_source
from .external import build, external_function
from .lower import exact_key, read_function, short_name
from .stitch_ops import STITCH_ATTR, is_marked
from .traverse import post_order, with_calls


@module_pass
class ScheduleStitchOps:
    """Give every stitch op its scheduled kernel, and build it.

    Functions marked ``tvm_stitch.stitch_op`` are planned and emitted for ``target``. They become external functions
    of the compiler ``tvm_stitch``, which carry their kernel (``tvm_stitch.relay.external``). Equal functions share
    one. The module's decisions (``tvm_stitch.records.decisions``) receive each function's plan by its name, and by
    scope the reason why it has none.

    Args:
        target: the module's target.
        config: options. The defaults suit most models.
        prefix: beginning of the names of all kernels.
        build: whether to build the kernels at once, so that one that TVM rejects is left to TVM. Without it, each is
            built when TVM asks for it, and an error then ends the process. That suits only a look at the module.

    Raises:
        StitchError: under ``StitchConfig(strict=True)``, if a stitch op cannot be scheduled.
    """

    def __init__(
        self,
        target: Any,
        config: StitchConfig | None = None,
        prefix: str = "tvmgen_default",
        build: bool = True,
    ):
        self.target = resolve_target(target)
        self.config = checked_config(config)
        self.device = device_model(self.target, self.config)
        self.prefix = identifier(prefix)  # the user's name of the module is in it
        self.build = build

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Return the module with the marked functions scheduled."""
        known: dict[str, Any] = {}
        plans: dict[str, KernelPlan] = {}
        declined: dict[str, str] = {}
        names = {str(gvar.name_hint) for gvar in mod.functions}

        def scheduled(func: Any, scope: str) -> Any:
            """Return the external function of a marked one, or None if that fails."""
            name = fresh(f"{self.prefix}_{function_name(func)}", names, "{}_{}")
            check()
            try:
                plan, kernel = self._scheduled(func, name)
            except Exception as err:  # a fault here or in TVM must not cost the user a working model
                raise_where_strict(err, scope, self.config.strict)
                declined[scope] = reason_of(err, name)
                return None
            plans[name] = plan
            names.add(name)
            return external_function(func, kernel, self.target)

        def schedule(func: Any) -> Any:
            """Return the external function of a marked one, or the marked one if that fails."""
            scope = str(func.attrs[STITCH_ATTR])
            key = exact_key(func.without_attr(STITCH_ATTR))
            if known.get(key) is None and scope not in declined:
                known[key] = scheduled(func, scope)
            external = known.get(key)
            return func if external is None else external

        def change(call: Any) -> Any:
            if is_marked(call.op):
                return relay.Call(schedule(call.op), call.args, call.attrs, call.type_args, call.span)
            return call

        return decided(with_calls(mod, change), plans=plans, declined=declined)

    def _scheduled(self, func: Any, name: str) -> tuple[KernelPlan, Any]:
        """Return a function's plan and its kernel, which is built."""
        lowered, graph = read_function(func, self.target, name)
        plan = choose_plan(graph, self.device, self.config)
        kernel = emit(lowered, plan).with_attr("global_symbol", name)
        if self.build:
            with fixed_cuda_source() if self.target.kind.name == "cuda" else nullcontext():
                build(kernel, self.target)
        return plan, kernel


def function_name(func: Any, first: str = "stitch") -> str:
    """Return ``first`` and the names of the function's operators. Of many, the middle ones are only counted."""
    names = [
        short_name(e.op.name)
        for e in post_order([func.body])
        if isinstance(e, relay.Call) and hasattr(e.op, "name")
    ]
    shown = names if len(names) <= 5 else [*names[:3], f"x{len(names) - 4}", names[-1]]
    return re.sub(r"\W", "_", "_".join([first, *shown]))
