# SPDX-License-Identifier: Apache-2.0
"""lower_math: rewrites the math calls of a scalar expression into operations that LLVM keeps as vector code."""

from __future__ import annotations

from collections.abc import Callable

from ... import compat
from ...compat import tir
from ...graph.dtype import HALF
from . import exponential, extrema, logarithm, power, rounding, trigonometric
from .scope import Bind, Expr, Scope, dtype_of, quotient

_FUNCTIONS: dict[str, Callable[..., Expr]] = {"pow": power.power} | {f.__name__: f for f in (
    exponential.exp, exponential.exp2, exponential.exp10, exponential.sigmoid,
    exponential.tanh, exponential.sinh, exponential.cosh,
    logarithm.log, logarithm.log2, logarithm.log10, logarithm.log1p,
    power.hypot, exponential.erf,
    trigonometric.sin, trigonometric.cos, trigonometric.tan,
    trigonometric.atan, trigonometric.atan2, trigonometric.asin, trigonometric.acos,
    logarithm.asinh, logarithm.acosh, logarithm.atanh,
)}  # fmt: skip
# LLVM code generation has no rule for these, or a formula that loses all digits of small operands.
_LIBM = ("sinh", "cosh", "tanh", "atanh")

_SIMPLE = ("nearbyint", "rsqrt", "copysign", "fmod")
_INTEGER_DIVISION = (tir.Div, tir.Mod, tir.FloorDiv, tir.FloorMod)


def lower_math(expr: Expr, bind: Bind | None = None) -> Expr:
    """Rewrite the float math calls of a scalar expression so that a vectorized loop around it stays vectorized.

    - float32 calls become polynomials (errors in ``MATH_ERROR``).
    - float16 and bfloat16 calls are computed in float32 and cast back.
    - float64 calls stay libm calls. They become libm calls if TVM's own rule is a formula of less precision.
    - An ``if_then_else`` without loads in its branches becomes a Select. Others stay, with ``Let`` in their branches.
      They keep their loop scalar unless all lanes share the condition.
    - Anything else is returned as it is.

    NaN goes through every function as in C. Equal calls are computed once.

    Args:
        expr: a scalar TIR expression (vector-typed calls are left alone).
        bind: called with each sub-expression that is used several times, in order of evaluation. It arranges for the
            value to be computed before the expression, and returns its replacement there. In a vectorized loop the
            replacement should be a load from a local buffer with one element a lane, allocated outside the loop. LLVM
            turns such a buffer into a register, and compile time stays linear. TVM's simplifier expands ``Bind``
            statements into each other. A buffer allocated inside the loop gives every lane the value of lane 0.
            Without ``bind`` the result holds nested ``Let`` expressions, which vectorize as well. But each doubles
            the time of TVM's passes, so omit ``bind`` only for an expression with one or two calls.

    Returns: an expression of the same dtype.

    Raises:
        ValueError: without ``bind``, if more than 16 Lets would nest.
    """
    scope = Scope(bind)
    return scope.close(_Lowerer(scope).visit(expr))


_KNOWN = compat.LEAVES | compat.BINARY | {"BitwiseNot", "Not", "Cast", "Select", "Let", "Call"}


def _children(expr: Expr) -> list[Expr]:
    """Return the sub-expressions in order. Leaves and nodes with a body of their own (a Reduce) have none."""
    return compat.operands(expr) if _is_known(expr) else []


def _is_known(expr: Expr) -> bool:
    return compat.kind(expr) in _KNOWN or compat.is_load(expr)


def _rebuilt(expr: Expr, old: list[Expr], new: list[Expr]) -> Expr:
    """Replace the children ``old`` of ``expr`` by ``new``. The same object is returned if nothing changed."""
    if all(after.same_as(before) for after, before in zip(new, old, strict=True)):
        return expr
    return compat.with_operands(expr, new)


class _Lowerer:
    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.renamed: dict[compat.Var, Expr] = {}
        self.visited: dict[int, list[tuple[Expr, Expr]]] = {}

    def visit(self, expr: Expr) -> Expr:
        """Lower an expression. An expression that several others share (the same object) is visited once."""
        # A hash says little: equal constants of different dtypes share one.
        known = self.visited.setdefault(hash(expr), [])
        for seen, lowered in known:
            if seen.same_as(expr):
                return lowered
        lowered = self.lower_node(expr)
        known.append((expr, lowered))
        return lowered

    def lower_node(self, expr: Expr) -> Expr:
        if isinstance(expr, tir.Var):
            return self.renamed.get(expr, expr)
        if isinstance(expr, tir.Let):
            self.renamed[expr.var] = self.scope.let(self.visit(expr.value))
            return self.visit(expr.body)
        if compat.is_operator_call(expr):
            return self.visit_call(expr, compat.call_name(expr))
        old = _children(expr)
        new = [self.visit(child) for child in old]
        if isinstance(expr, (tir.Max, tir.Min)) and dtype_of(expr) in ("float32", "float64"):
            return extrema.extremum(self.scope, type(expr), *new)
        return _rebuilt(expr, old, new)

    def visit_call(self, call: Expr, name: str) -> Expr:
        if name == "if_then_else":
            return self.visit_if(call)
        if not all(compat.is_expr(arg) for arg in call.args):
            return call
        args = [self.visit(arg) for arg in call.args]
        dtype = dtype_of(args[0]) if args else ""
        if dtype in HALF and (name in _FUNCTIONS or name in _SIMPLE):
            wide = [tir.Cast("float32", arg) for arg in args]
            return tir.Cast(dtype, self.lower(name, "float32", wide))
        lowered = self.lower(name, dtype, args)
        if lowered is not None:
            return lowered
        return _rebuilt(call, list(call.args), args)

    def lower(self, name: str, dtype: str, args: list[Expr]) -> Expr | None:
        """Return the replacement of a call, or None if the call may stay."""
        scope = self.scope
        if dtype == "float32" and name in _FUNCTIONS:
            return scope.let(_FUNCTIONS[name](scope, *[scope.let(arg) for arg in args]))
        if dtype == "float64" and name in _LIBM:
            return tir.call_pure_extern(dtype, name, *args)
        if dtype == "float64" and name == "exp10":
            return tir.pow(tir.const(10.0, dtype), *args)  # TVM's own is 2 to the power of a rounded product
        if name == "isnan":
            return self.is_nan(dtype, args[0])
        if dtype not in ("float32", "float64"):
            return None
        if name == "nearbyint":
            result = compat.llvm_intrinsic(dtype, "llvm.nearbyint", *args)
            return rounding.nearbyint(scope, args[0]) if result is None else result
        if name == "rsqrt":
            return quotient(tir.const(1.0, dtype), tir.sqrt(args[0]))
        if name == "copysign":
            result = compat.llvm_intrinsic(dtype, "llvm.copysign", *args)
            return rounding.copysign(*args) if result is None else result
        if name == "fmod":
            return tir.Mod(*args)
        return None

    def is_nan(self, dtype: str, x: Expr) -> Expr | None:
        """Compare bits. LLVM folds x != x away, and TVM's isnan turns a vectorized loop scalar."""
        if dtype in HALF:
            x, dtype = tir.Cast("float32", x), "float32"
        return extrema.is_nan_by_bits(x) if dtype in ("float32", "float64") else None

    def visit_if(self, call: Expr) -> Expr:
        condition = self.visit(call.args[0])
        if self.speculable(call.args[1]) and self.speculable(call.args[2]):
            return tir.Select(condition, self.visit(call.args[1]), self.visit(call.args[2]))
        return tir.if_then_else(condition, self.visit_lazily(call.args[1]), self.visit_lazily(call.args[2]))

    def visit_lazily(self, expr: Expr) -> Expr:
        """Lower in a scope of its own, so that nothing of it is evaluated outside."""
        outer, renamed, visited = self.scope, dict(self.renamed), dict(self.visited)
        self.scope = Scope(parent=outer)
        try:
            return self.scope.close(self.visit(expr))
        except ValueError:  # too many Lets: libm calls are as good, in a loop that is most likely scalar
            return expr
        finally:
            self.scope, self.renamed, self.visited = outer, renamed, visited

    def speculable(self, expr: Expr) -> bool:
        """Return True if evaluating the expression when it is not needed can neither trap nor have a visible effect."""
        pending, seen = [expr], set()
        while pending:
            node = pending.pop()
            if hash(node) not in seen:
                seen.add(hash(node))
                if not self.node_speculable(node):
                    return False
                pending.extend(_children(node))
        return True

    def node_speculable(self, expr: Expr) -> bool:
        if compat.is_load(expr):
            return False
        if compat.kind(expr) == "Call" and not (
            compat.is_operator_call(expr) and compat.call_name(expr) in _PURE
        ):
            return False
        if isinstance(expr, _INTEGER_DIVISION) and "float" not in dtype_of(expr):
            if not (isinstance(expr.b, tir.IntImm) and expr.b.value > 0):
                return False
        return _is_known(expr)


_PURE = frozenset(_FUNCTIONS) | frozenset(
    "nearbyint rsqrt copysign fmod isnan sqrt floor ceil trunc round fabs fma reinterpret likely "
    "if_then_else shift_left shift_right bitwise_and bitwise_or bitwise_xor bitwise_not".split()
)

__all__ = ["lower_math"]
