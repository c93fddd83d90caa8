# SPDX-License-Identifier: Apache-2.0
"""Guard divisions by extents that may be 0. They trap on a CPU and are undefined in CUDA C.

No element of an empty tensor is computed, so a kernel itself never divides by an extent of 0.

Fault: TVM's elimination of common subexpressions moves a division out of loops and conditions, and out of a GPU's
    kernels into their host's code. It does so with loops that have no iterations, and the division by 0 ends the
    process.
Seen in: TVM 0.27.0
Input: two loops over n rows that read column ``480 // n``, with n = 0, target llvm
Upstream: none known

Fault: TVM's simplifier raises an error at a division by an expression that the conditions around it make 0.
Seen in: TVM 0.27.0
Input: ``i // max(n - 2, 0)`` under ``if n * 4 < 8``, ``x / float32(max(n - 2, 0))`` there, and ``i // (n // 16)`` under
    ``if n < 8``
Upstream: none known
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from ... import compat
from ...compat import Expr, T, tir
from ...graph.index_equality import equal_indices
from .opaque import as_c_type, or_zero


def without_zero_divisors(func: Any) -> Any:
    """Return the scheduled PrimFunc without divisions by a symbolic extent that is 0.

    If all results are empty when a divisor is 0, the kernel then does nothing. Any other divisor ``d`` that may be 0
    becomes ``max(d, 1)``. So does one that holds a maximum, a minimum or a quotient, which TVM may replace by the
    constant 0: ``n // 16`` where ``n < 8``. In kernels of a GPU so does the divisor of a number that all threads share,
    because the host may compute the quotient.
    """
    if not compat.HAS_SYMBOLIC_EXTENTS:
        return func
    divisors = _divisors(func)
    if not divisors:
        return func
    shapes = _results(func)
    deciding = [d for d in divisors if all(_empties(d, shape) for shape in shapes)]
    others = [d for d in divisors if d not in deciding or _may_fold(d)]
    body = _at_least_one(func.body, others) if others else func.body
    if deciding and _launches(body):
        body = _left_by_threads(_at_least_one(body, deciding, _symbols_of(func)), deciding)
    elif deciding:
        body = _where_present(body, deciding)
    return func.with_body(body)


def _where_present(body: Any, divisors: Sequence[Expr]) -> Any:
    """Return the body of a CPU kernel under the condition that no divisor is 0."""
    from tvm import s_tir

    present = reduce(tir.And, [tir.NE(d, compat.const(0, compat.dtype_of(d))) for d in divisors])

    def guarded(block: Any) -> Any:
        if block.name_hint != "root":
            return block
        return compat.changed_block(block, body=tir.IfThenElse(present, block.body, None))

    return compat.structural_map(body, (s_tir.SBlock, guarded), order="post")


def _left_by_threads(body: Any, divisors: Sequence[Expr]) -> Any:
    """Return the body of GPU kernels whose threads return at once if a divisor is 0.

    TVM takes a condition of the host for one around the kernel's barriers, so the threads evaluate it.
    """

    def zero(d: Expr) -> Expr:
        dtype = compat.dtype_of(d)  # TVM assumes a positive extent below loops and launches over it
        return tir.EQ(as_c_type(d, dtype), compat.const(0, dtype))

    absent = reduce(tir.Or, map(zero, divisors))

    def left(launch: Any) -> Any:
        if launch.attr_key != "thread_extent" or _launches(launch.body):
            return launch
        leave = tir.IfThenElse(absent, tir.Evaluate(T.thread_return()), None)
        return tir.AttrStmt(launch.node, launch.attr_key, launch.value, tir.SeqStmt([leave, launch.body]))

    return compat.structural_map(body, (tir.AttrStmt, left), order="post")


def _launches(body: Any) -> bool:
    """Return True if a statement launches threads of a GPU."""
    launches: list[Any] = []
    compat.structural_walk(body, (tir.AttrStmt, launches.append), order="post")
    return any(attr.attr_key == "thread_extent" for attr in launches)


def without_folded_divisors(func: Any) -> Any:
    """Return the scheduled PrimFunc with opaque extents as the divisors of floats.

    The mean of a row of ``max(n - 2, 0)`` elements is NaN for ``n = 2``. A divisor of at least 1 would change that.
    """
    if not compat.HAS_SYMBOLIC_EXTENTS:
        return func

    def opaque(e: Expr) -> Expr:
        divisor = e.b
        if (
            compat.kind(divisor) != "Cast"
            or "int" in compat.dtype_of(divisor)
            or "int" not in compat.dtype_of(divisor.value)
            or not _may_fold(divisor.value)
        ):
            return e
        return type(e)(e.a, tir.Cast(compat.dtype_of(divisor), or_zero(divisor.value)))

    return func.with_body(compat.structural_map(func.body, (tir.Div, opaque), order="post"))


_DIVISIONS = (tir.FloorDiv, tir.FloorMod, tir.Div, tir.Mod)


def _divisors(func: Any) -> list[Expr]:
    """Return the different integer divisors that consist of the function's symbols and may be 0. Floats do not trap."""
    symbols = _symbols_of(func)
    divisors: dict[Any, Expr] = {}

    def visit(e: Expr) -> None:
        used = _symbols(e.b)
        if "int" not in compat.dtype_of(e.b):
            return
        if used and used <= symbols and not is_positive(e.b):
            divisors.setdefault(compat.expression_key(e.b), e.b)

    compat.structural_walk(func.body, (_DIVISIONS, visit), order="post")
    return list(divisors.values())


def _symbols_of(func: Any) -> set[Any]:
    """Return the symbols in the shapes of a function's tensors, and its parameters that are numbers."""
    parameters = compat.prim_func_params(func)
    return {v for _, b in parameters if b is not None for e in b.shape for v in _symbols(e)} | {
        p for p, b in parameters if b is None
    }


def _may_fold(divisor: Expr) -> bool:
    """Return True if a divisor may become a constant where a condition bounds its symbols."""
    products: list[Expr] = []
    compat.structural_walk(divisor, ((tir.Max, tir.Min, *_DIVISIONS), products.append), order="post")
    return bool(products)


def _symbols(e: Expr) -> set[Any]:
    return set() if compat.int_value(e) is not None else compat.free_vars(e)


def is_positive(e: Expr) -> bool:
    """Return True if an extent is at least 1 because it is a sum with a positive number."""
    value = compat.int_value(e)
    if value is not None:
        return value > 0
    name = compat.kind(e)
    if name == "Max":
        return is_positive(e.a) or is_positive(e.b)
    if name in ("Mul", "Min"):
        return is_positive(e.a) and is_positive(e.b)
    return name == "Add" and _is_sum(e) and (is_positive(e.a) or is_positive(e.b))


def _is_sum(e: Expr) -> bool:
    """Return True if no operation of an expression makes a negative number of natural ones."""
    value = compat.int_value(e)
    if value is not None:
        return value >= 0
    if compat.kind(e) in ("Var", "SizeVar"):
        return True
    return compat.kind(e) in ("Add", "Mul", "Max", "Min", "FloorDiv", "FloorMod", "Div", "Mod") and all(
        map(_is_sum, compat.operands(e))
    )


def _results(func: Any) -> list[Sequence[Expr]]:
    """Return the shapes of the parameters that the function writes."""
    written: list[Any] = []
    compat.structural_walk(func.body, (tir.BufferStore, lambda s: written.append(s.buffer)), order="post")
    buffers = [b for _, b in compat.prim_func_params(func) if b is not None]
    return [b.shape for b in buffers if any(b.same_as(w) for w in written)]


def _empties(divisor: Expr, shape: Sequence[Expr]) -> bool:
    """Return True if a tensor has no elements whenever the divisor is 0."""
    factors = [f for extent in shape for f in _factors(extent)]
    return all(
        is_positive(f) or any(equal_indices(f, factor, ()) for factor in factors) for f in _factors(divisor)
    )


def _factors(e: Expr) -> list[Expr]:
    return _factors(e.a) + _factors(e.b) if compat.kind(e) == "Mul" else [e]


def _at_least_one(body: Any, divisors: Sequence[Expr], symbols: set[Any] | None = None) -> Any:
    """Return a statement with ``max(d, 1)`` for each of the divisors ``d``.

    If ``symbols`` are given, only in quotients that depend on no other variables.
    """
    keys = {compat.expression_key(d) for d in divisors}

    def divided(e: Expr) -> Expr:
        if compat.expression_key(e.b) not in keys or (symbols is not None and not _symbols(e.a) <= symbols):
            return e
        return type(e)(e.a, tir.Max(e.b, compat.const(1, compat.dtype_of(e.b))))

    return compat.structural_map(body, (_DIVISIONS, divided), order="post")
