# SPDX-License-Identifier: Apache-2.0
"""LibraryMatmuls: matmuls of a CUDA device become calls of cuBLASLt.

It runs on Relax operators, before anything is legalized. There the readers of a value are known by their operator
names, and a matmul never meets TVM's schedules. The call is ``R.call_dps_packed("tvm_stitch.cublaslt.matmul", (left,
right, bias?, residual?, numbers, mode))`` with two results: the matmul, and a workspace that nobody reads. The memory
planner therefore allocates the workspace, CUDA graphs own it, and no two streams or threads share one.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ...compute.cuda import library
from ...graph.dtype import MULTIPLIED
from ...graph.extent import as_expr, is_number, is_static, text_of
from ...repairs.prim_funcs import is_scheduled
from ...support.failures import Refusal
from ...support.module_pass import module_pass
from ...target import capability_of
from ..few_rows.weights import Graphs, Weights
from ..rewriting.compute_pass import ComputePass
from ..rewriting.functions import own_functions
from ..rewriting.rules import Match, Rule, apply_rules
from .calls import check_capability, has_calls
from .innermost_operands import with_innermost_axes_kept
from .plan import Planned, is_product, planned


@module_pass
class LibraryMatmuls(ComputePass):
    """Replace ``R.matmul`` by calls of cuBLASLt that read operands as they lie in memory.

    An operand may be a transposition, permutation, reshape or broadcast of a value. If the library can, it reads that
    value instead. A bias, a residual and ReLU behind a matmul are computed with it if no kernel follows that would
    compute them on the way. Algorithms for static shapes are timed at the first call. The library chooses the others.

    Runs before ``LegalizeOps``. The module's decisions record for each matmul what computes it, and why. With
    ``compute="auto"`` all matmuls are left to TVM if cuBLASLt is not installed.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        functions = dict(own_functions(mod))
        wanted = is_product, library.CUBLASLT, self.config, self.computed
        if not has_calls(functions.values(), "matmul", *wanted):
            return mod
        mod = with_innermost_axes_kept(mod)
        functions = dict(own_functions(mod))
        scheduled = {
            g for g, f in mod.functions_items() if isinstance(f, tvm.tirx.PrimFunc) and is_scheduled(f)
        }
        plans: dict[relax.Var, Planned] = {}
        graphs = Graphs(mod)
        for func in functions.values():
            plans |= self._planned(graphs, func, scheduled)

        def called(match: Match) -> relax.Expr:
            plan = plans[match.var]
            operands = [v for v in (plan.left, plan.right, plan.bias, plan.residual) if v is not None]
            result = library_call(plan, [match.now(v) for v in operands], match.before.ty, self)
            return relax.TupleGetItem(match.emit(result), 0)

        return apply_rules(mod, [Rule("a library is faster", called, variables=plans, leaves_unused=True)])

    def _planned(self, graphs: Graphs, func: relax.Function, scheduled: set[Any]) -> dict[relax.Var, Planned]:
        def refused(result: relax.Var, reason: str) -> None:
            self.computed["matmul", result] = f"TVM: {reason}"

        weights = Weights(graphs, func, self.device, self.config)

        def check(call: relax.Call) -> None:
            if weights.is_waited_for(call):
                raise Refusal("its few rows wait for the weight, so a stitch op may take it")
            check_dtypes(self.target, call)

        plans = planned(func, check, refused, self.config.epilogues, scheduled)
        for plan in plans.values():  # by the name of the call's result, which a report finds
            self.computed["matmul", plan.result] = f"{library.CUBLASLT.title}: {described(plan)}"
        return plans


def check_dtypes(target: tvm.target.Target, call: relax.Call) -> None:
    """Raise a Refusal unless the library has matmuls of these dtypes."""
    left, right = (str(arg.ty.dtype) for arg in call.args)
    out = str(call.ty.dtype)
    if left != right or left not in MULTIPLIED or out not in (left, "float32"):
        raise Refusal(
            f"a product of {left} and {right} in {out} is none that {library.CUBLASLT.title} is asked for"
        )
    check_capability(target, left)


def library_call(
    plan: Planned, operands: list[relax.Expr], ty: relax.Type, owner: LibraryMatmuls
) -> relax.Call:
    """Return the call that computes a matmul: a tuple of its result and the workspace that it used.

    Args:
        plan: how its operands lie, and what is computed with it.
        operands: left and right side, bias and residual if there are any.
        ty: the type of the result.
        owner: names the target and the options.
    """
    numbers = relax.ShapeExpr([as_expr(n) for n in plan.layout.numbers])
    tf32 = "tf32" if owner.config.tf32 and str(operands[0].ty.dtype) == "float32" else ""
    timed = "timed" if is_static(plan.layout.numbers) else ""
    mode = tvm.ir.StringImm(plan.layout.mode(*plan.words, tf32, timed))
    capability = capability_of(owner.target)
    _, size = max(each for each in owner.device.choices.matmul_workspace_bytes if capability >= each[0])
    result = relax.TensorType(ty.shape, str(ty.dtype))
    workspace = relax.TensorType([size], "uint8")
    arguments = relax.Tuple([*operands, numbers, mode])
    return relax.call_dps_packed(library.CUBLASLT.function, arguments, [result, workspace])


def described(plan: Planned) -> str:
    """Return a matmul's sizes, how its sides lie, and what is computed with it, in words."""
    layout = plan.layout
    batch = "" if is_number(layout.batch, 1) else f"{text_of(layout.batch)} of "
    words = [f"{batch}{' x '.join(text_of(e) for e in (layout.rows, layout.columns, layout.reduction))}"]
    words += ["result by columns"] if layout.swapped else []
    words += [
        f"{side} side transposed" for side in ("left", "right") if getattr(layout, f"{side}_transposed")
    ]
    words += [f"with {' and '.join(plan.words)}"] if plan.words else []
    return ", ".join(words)
