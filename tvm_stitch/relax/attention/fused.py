# SPDX-License-Identifier: Apache-2.0
"""FusedAttention: replace attention by one kernel that keeps the scores on chip.

The pass runs before matmuls become library calls. ``scores`` recognises the operators between the two matmuls, and
``plan`` finds how the operands lie in memory. ``operator`` does the same for ``R.nn.attention``. If the kernel does
not take that operator, ``decompose`` writes it out. The result is plain data with three leading axes and a stride for
each of them (``compute/attention``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import tvm
from tvm import relax

from ... import compat
from ...compat import tir
from ...compute.attention import Attention, Operand
from ...compute.attention_kernels import AttentionKernels, attention_kernels
from ...compute.cuda.library import CUDNN_ATTENTION
from ...graph.extent import Extent, as_expr, as_extent, is_number, same_shape
from ...support.failures import reason_of
from ...support.module_pass import module_pass
from ..rewriting.compute_pass import ComputePass
from ..rewriting.functions import own_functions
from ..rewriting.operators import operator_name
from ..rewriting.rules import Match, Rule, apply_rules
from ..rewriting.views import shape_of
from .operands import Rounded, stored_value
from .operator import OPERATORS, planned_operator
from .plan import AttentionFinder, Planned
from .scores import NotAttention

LIBRARY_OR_KERNEL = f"our kernel or {CUDNN_ATTENTION.title}, the faster one when it runs"
"""The words of decisions for attention that a library may compute."""


@module_pass
class FusedAttention(ComputePass):
    """Replace the matmul, softmax and matmul of attention by one kernel, and ``R.nn.attention`` too.

    Runs before matmuls become library calls, and before ``LegalizeOps``. For each attention that the pass finds, the
    module's decisions record what computes it, and why.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        kernels = attention_kernels(self.target, self.config)
        if kernels is None:
            return mod
        plain = relax.transform.CanonicalizeBindings()(mod)  # without aliases
        plans: dict[relax.Var, Planned] = {}
        for _, func in own_functions(plain):
            plans |= self._planned(func, kernels)
        rewriter = _Kernels(kernels)
        why = "scores stay on chip"
        rule = Rule(
            why, lambda match: rewriter.call(match, plans[match.var]), variables=plans, leaves_unused=True
        )
        return apply_rules(plain, [rule]) if plans else mod

    def _planned(self, func: relax.Function, kernels: AttentionKernels) -> dict[relax.Var, Planned]:
        """Return the attention that our kernel computes, by the variable that its result replaces."""
        finder = AttentionFinder(func, kernels.widens, kernels.mixes)
        operators = [v for v, call in finder.values.items() if operator_name(call) in OPERATORS]
        ways = dict.fromkeys(finder.candidates(), finder.planned)
        ways |= {var: partial(planned_operator, finder) for var in operators}
        plans: dict[relax.Var, Planned] = {}
        for var, way in ways.items():
            self._note(kernels, plans, var, partial(way, var))
        read = {stored_value(value) for plan in plans.values() for value in plan.values}
        for result, plan in list(plans.items()):
            if not read.isdisjoint(plan.skipped):  # another plan reads a variable that would be gone
                del plans[result], self.computed["attention", result]
                var = plan.skipped[0]
                self._note(kernels, plans, var, partial(ways[var], var, permuted=False))
        return plans

    def _note(
        self,
        kernels: AttentionKernels,
        plans: dict[relax.Var, Planned],
        var: relax.Var,
        plan: Callable[[], Planned],
    ) -> None:
        try:
            planned = plan()
            kernels.check(planned.attention)
        except NotAttention:
            return
        except Exception as err:
            reason = reason_of(err, f"attention {var.name}", self.config.strict)
            self.computed["attention", var] = f"its products and softmax one by one: {reason}"
            return
        plans[planned.result] = planned
        way = "our kernel" if kernels.library(planned.attention) is None else LIBRARY_OR_KERNEL
        self.computed["attention", planned.result] = f"{way}: {described(planned.attention)}"


def described(attention: Attention) -> str:
    """Return the sizes of attention in words."""
    leading = " x ".join(str(e) for e in attention.leading if not is_number(e, 1)) or "1"
    words = [f"{leading} heads of {attention.size}, {attention.queries} queries, {attention.keys} keys"]
    words += ["causal"] if attention.causal is not None else []
    words += ["with a mask"] if attention.mask is not None else []
    return ", ".join(words)


class _Kernels:
    def __init__(self, kernels: AttentionKernels):
        self.kernels = kernels
        self.made: dict[Attention, tvm.ir.GlobalVar] = {}

    def call(self, match: Match, plan: Planned) -> relax.Expr:
        """Return the call that computes attention."""
        stored = {value: _stored(match, value) for value in plan.values}
        operands = [stored[value] for value in plan.values]
        operands += [_mask(match, plan)] if plan.masks else []
        kernel, numbers = self._kernel(match.builder, plan.attention)
        ty = relax.TensorType(match.before.ty.shape, str(match.before.ty.dtype))
        by_library = self.kernels.library(plan.attention)
        if by_library is None:
            return relax.call_tir(kernel, relax.Tuple([*operands, *numbers]), ty)
        given = [relax.ShapeExpr(numbers), relax.ShapeExpr([as_expr(n) for n in by_library.numbers])]
        arguments = relax.Tuple([*operands, kernel, *given, tvm.ir.StringImm(by_library.mode)])
        results = [ty, relax.TensorType([by_library.workspace], "uint8")]
        called = match.emit(relax.call_dps_packed(CUDNN_ATTENTION.function, arguments, results))
        return relax.TupleGetItem(called, 0)

    def _kernel(self, builder: relax.BlockBuilder, attention: Attention) -> tuple[Any, list[Any]]:
        """Return the kernel of an attention, one for all equal ones, and the numbers that it takes as arguments."""
        symbols = _symbols(attention)
        # A PrimFunc needs variables of its own.
        own = {symbol: tir.Var(symbol.name, "int64") for symbol in symbols}
        bound = {
            extent for operand in attention.inputs for extent in operand.shape if not isinstance(extent, int)
        }
        numbers = [symbol for symbol in symbols if symbol not in bound]
        if symbols:
            func = self.kernels.kernel(renamed(attention, own), [own[number] for number in numbers])
            return builder.add_func(func, "attention"), numbers
        if attention not in self.made:
            self.made[attention] = builder.add_func(self.kernels.kernel(attention, []), "attention")
        return self.made[attention], []


def _stored(match: Match, value: relax.Expr | Rounded) -> relax.Expr:
    """Return the tensor of an operand."""
    return value.emitted(match) if isinstance(value, Rounded) else match.now(value)


def _mask(match: Match, plan: Planned) -> relax.Expr:
    """Emit the sum of the masks."""
    summed = None
    for mask in plan.masks:
        value = match.now(mask.value)
        if not same_shape(shape_of(mask.value) or (), mask.shape):
            value = match.emit(relax.op.reshape(value, [as_expr(e) for e in mask.shape]))
        summed = value if summed is None else match.emit(relax.op.add(summed, value))
    return summed


def renamed(attention: Attention, variables: Mapping[Any, Any]) -> Attention:
    """Return the attention with other variables in its extents, strides and offsets."""

    def number(extent: Any) -> Any:
        known = isinstance(extent, int) or extent is None
        return extent if known else as_extent(compat.substitute(extent, variables))

    def operand(of: Operand | None) -> Any:
        if of is None:
            return None
        return replace(
            of,
            shape=tuple(map(number, of.shape)),
            offset=number(of.offset),
            strides=tuple(map(number, of.strides)),
        )

    return replace(
        attention,
        leading=tuple(map(number, attention.leading)),
        **{name: number(getattr(attention, name)) for name in ("queries", "keys", "causal")},
        **{name: operand(getattr(attention, name)) for name in ("q", "k", "v", "out", "mask")},
    )


def _symbols(attention: Attention) -> list[Any]:
    """Return the variables in the extents, strides and offsets."""
    numbers: list[Extent] = [*attention.leading, attention.queries, attention.keys, attention.causal or 0]
    for operand in (*attention.inputs, attention.out):
        numbers += [*operand.shape, operand.offset, *operand.strides]
    symbols: dict[Any, None] = {}
    for number in numbers:
        if not isinstance(number, int):
            symbols |= dict.fromkeys(tir.analysis.undefined_vars(number, []))
    return list(symbols)
