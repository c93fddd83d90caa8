# SPDX-License-Identifier: Apache-2.0
"""TIR's modules and scalar expressions under one set of names for all supported TVMs.

TVMs with Relay treat floats that differ by less than 1e-9 as equal, and loads of any two buffers. So expressions
are compared here.
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import tvm

from .capabilities import DECLARES_DEVICE_FUNCTIONS, HAS_TIRX

_TIR = "tvm.tirx" if HAS_TIRX else "tvm.tir"

tir: Any = importlib.import_module(_TIR)
arith: Any = importlib.import_module("tvm.sym" if HAS_TIRX else "tvm.arith")
IRBuilder: Any = importlib.import_module("tvm.script.ir_builder").IRBuilder
T: Any = importlib.import_module("tvm.tirx.script.builder" if HAS_TIRX else "tvm.script.ir_builder.tir")

Analyzer: Any = arith.Analyzer
_item: Any = (
    tvm.get_global_func("ffi.ArrayGetItem")
    if HAS_TIRX
    else importlib.import_module("tvm.runtime._ffi_api").ArrayGetItem
)
_STRUCTURE: Any = importlib.import_module("tvm_ffi" if HAS_TIRX else "tvm.ir")
_structural_key: Any = getattr(_STRUCTURE, "StructuralKey", None)
structural_map: Any = getattr(_STRUCTURE, "structural_map", None)
structural_walk: Any = getattr(_STRUCTURE, "structural_walk", None)
"""TVM's maps and walks over nodes by class, for a TVM with Relax."""
_map: Any = tvm.get_global_func("ffi.StructuralMap") if HAS_TIRX else None
_VARIABLES: int = _STRUCTURE.core.TypeSchema.from_annotation(tir.Var).origin_type_index if HAS_TIRX else 0
_BEHIND = 1
"""TVM's code for the order in which a node follows its operands."""
if TYPE_CHECKING:
    from tvm.ir import Expr
    from tvm.tirx import Buffer, PrimFunc, Stmt, Var
else:  # TVMs have them in different modules
    Expr = Buffer = PrimFunc = Stmt = Var = Any

BINARY = frozenset(
    "Add Sub Mul Div Mod FloorDiv FloorMod Min Max EQ NE LT LE GT GE And Or".split()
    + "BitwiseAnd BitwiseOr BitwiseXor LShift RShift".split()
)
"""Class names of the two-operand scalar expressions (operands ``a`` and ``b``)."""


_CONSTANTS = frozenset({"IntImm", "FloatImm", "StringImm"})
LEAVES = _CONSTANTS | {"Var", "SizeVar", "DataflowVar"}
"""Class names of the scalar expressions without operands."""


def kind(node: Any) -> str:
    """Return the class name of an IR node, the key that this package dispatches on."""
    return type(node).__name__


def dtype_of(expr: Expr) -> str:
    """Return the dtype of a scalar expression, as a string such as ``"float32"``."""
    if HAS_TIRX:
        return str(expr.ty)
    return str(expr.dtype)


def is_load(expr: Expr) -> bool:
    """Return whether an expression reads a buffer element."""
    return kind(expr) in ("TensorLoad", "BufferLoad")


def load_buffer(expr: Expr) -> Buffer:
    """Return the buffer that a load reads."""
    return expr.source if HAS_TIRX else expr.buffer


def load(buffer: Buffer, indices: Sequence[Expr]) -> Expr:
    """Construct a load of ``buffer`` at ``indices``."""
    return tir.BufferLoad(buffer, list(indices))


def call_name(expr: Expr) -> str:
    """Return the bare name of a call's operator (``"exp"`` for ``tirx.exp`` or ``tir.exp``), or ``""`` if it has
    none.
    """
    return _bare(getattr(expr.op, "name", ""))


@cache
def _bare(name: str) -> str:
    return name.split(".", 1)[1] if name.startswith(("tirx.", "tir.", "prim.")) else name


def is_expr(value: Any) -> bool:
    """Return whether a value is a scalar expression (or a string constant), and not another argument of a call."""
    return isinstance(value, tvm.ir.Expr if HAS_TIRX else tvm.ir.PrimExpr)


def is_choice(expr: Expr) -> bool:
    """Return whether an expression is an ``if_then_else``, which evaluates one branch."""
    return kind(expr) == "Call" and call_name(expr) == "if_then_else"


def is_operator_call(expr: Expr) -> bool:
    """Return whether an expression calls a registered operator (not a function)."""
    return kind(expr) == "Call" and isinstance(expr.op, tvm.ir.Op)


def structural_hash(node: Any) -> int:
    """Return a hash that is equal for nodes of equal structure."""
    return int(_STRUCTURE.structural_hash(node))


def hash_in_order(nodes: Sequence[Any]) -> int:
    """Return a hash of a sequence of nodes that ignores the names of variables and buffers.

    For TVMs with Relax only.
    """
    return int(_STRUCTURE.structural_hash(_STRUCTURE.convert(list(nodes)), map_free_vars=True))


def structural_equal(a: Any, b: Any) -> bool:
    """Return whether scalar expressions have equal structure over the same variables and buffers.

    The comparison of a TVM with Relay takes loads of any two buffers for equal, and floats that differ by less than
    1e-9.
    """
    return bool(_STRUCTURE.structural_equal(a, b)) if HAS_TIRX else _equal(a, b)


def _equal(a: Expr, b: Expr) -> bool:
    if a.same_as(b):
        return True
    name = kind(a)
    if name != kind(b) or dtype_of(a) != dtype_of(b) or name in ("Var", "SizeVar", "Let"):
        return False
    if name in ("IntImm", "StringImm"):
        return bool(a.value == b.value)
    if name == "FloatImm":
        return struct.pack("d", a.value) == struct.pack("d", b.value)
    if is_load(a) and not load_buffer(a).same_as(load_buffer(b)):
        return False
    if name == "Call" and not a.op.same_as(b.op):
        return False
    mine, others = operands(a), operands(b)
    return len(mine) == len(others) and all(_equal(x, y) for x, y in zip(mine, others))


def expression_key(expr: Expr) -> Hashable:
    """Return a key that is equal for expressions of equal structure over the same variables and buffers only.

    Names do not distinguish variables, because two symbols of a module may have the same name.
    """
    if not HAS_TIRX:
        # A call from Python into this TVM is slow. The text distinguishes variables of one name within an
        # expression.
        return str(expr), *elements(tir.analysis.undefined_vars(expr, []))
    key: Hashable = _structural_key(expr)  # compares variables and buffers by identity, floats by their bits
    return key


def buffer_dtype(buffer: Buffer) -> str:
    """Return the element dtype of a buffer."""
    return str(buffer.dtype)


def const(value: float | int | bool, dtype: str) -> Expr:
    """Return a constant of the given dtype."""
    return tir.const(value, dtype)


def float_const(value: float, dtype: str) -> Expr:
    """Return a float32 or float64 constant that TVM does not replace by another one.

    The simplifier of a TVM with Relay replaces a choice between two constants by one of them if they differ by less
    than 1e-9. Small constants are therefore written as their bits.
    """
    if HAS_TIRX or not 0 < abs(value) < 1e-8:
        return const(value, dtype)
    code, integer = {"float32": ("f", "int32"), "float64": ("d", "int64")}[dtype]
    (bits,) = struct.unpack("i" if code == "f" else "q", struct.pack(code, value))
    return tir.reinterpret(dtype, const(bits, integer))


def same_var(expr: Expr, var: Var) -> bool:
    """Return whether the expression is this variable."""
    return kind(expr) in ("Var", "SizeVar") and bool(expr.same_as(var))


def string(value: str) -> Expr:
    """Return a string constant as an expression."""
    return tvm.ir.StringImm(value) if HAS_TIRX else tir.StringImm(value)


def int_value(expr: Expr) -> int | None:
    """Return the value of an integer constant (or a Python int), or None for anything else."""
    if isinstance(expr, int):
        return int(expr)
    if kind(expr) == "IntImm":
        return int(expr.value)
    return None


def rebuild(expr: Expr, visit: Callable[[Expr], Expr]) -> Expr:
    """Return the expression with ``visit`` applied to its operands.

    Raises:
        NotImplementedError: for an unknown kind of node.
    """
    before = operands(expr)
    after = [visit(e) for e in before]
    return expr if all(a is b for a, b in zip(after, before)) else with_operands(expr, after)


def with_operands(expr: Expr, after: Sequence[Expr]) -> Expr:
    """Return the same kind of node with other operands, in the order of :func:`operands`."""
    name = kind(expr)
    if is_load(expr):
        return load(load_buffer(expr), after)
    if name == "Call":
        return remake_call(expr, after)
    if name == "Cast":
        return tir.Cast(dtype_of(expr), *after)
    if name == "Let":
        return tir.Let(expr.var, *after)
    return type(expr)(*after)


def operands(expr: Expr) -> list[Expr]:
    """Return the direct sub-expressions of a scalar expression (the indices of a load).

    Raises:
        NotImplementedError: for an unknown kind of node.
    """
    name = kind(expr)
    if name in BINARY:
        return [expr.a, expr.b]
    if name in LEAVES:
        return []
    if is_load(expr):
        return elements(expr.indices)
    if name == "Call":
        return elements(expr.args)
    if name == "Cast":
        return [expr.value]
    if name == "Select":
        return [expr.condition, expr.true_value, expr.false_value]
    if name in ("Not", "BitwiseNot"):
        return [expr.a]
    if name == "Let":
        return [expr.value, expr.body]
    raise NotImplementedError(f"scalar expression of kind {name}")


def elements(array: Any) -> list[Any]:
    """Return the elements of a TVM array. TVM's iteration asks for the length before every element."""
    return [_item(array, i) for i in range(len(array))]


def remake_call(expr: Expr, args: Sequence[Expr]) -> Expr:
    """Return the call ``expr`` with other arguments."""
    if HAS_TIRX:
        return tir.call_intrin(expr.ty, expr.op, *args, attrs=expr.attrs)
    return tir.Call(expr.dtype, expr.op, list(args))


def recast_call(expr: Expr, dtype: str, args: Sequence[Expr]) -> Expr:
    """Return the call ``expr`` with other arguments and another result dtype."""
    if HAS_TIRX:
        return tir.call_intrin(dtype, expr.op, *args)
    return tir.Call(dtype, expr.op, list(args))


def intrinsic(dtype: str, name: str, *args: Expr) -> Expr:
    """Return a call of a TIR builtin by its bare name."""
    return tir.call_intrin(dtype, ("tirx." if HAS_TIRX else "tir.") + name, *args)


def unfolded_or(a: Expr, b: Expr) -> Expr:
    """Return ``a | b`` for integers, without folding two constants."""
    return tir.BitwiseOr(a, b) if HAS_TIRX else intrinsic(dtype_of(a), "bitwise_or", a, b)


def attribute(name: str) -> str:
    """Return the full name of one of TIR's function attributes (``"is_scheduled"``, ``"noalias"``)."""
    return ("tirx." if HAS_TIRX else "tir.") + name


def shuffle_xor(dtype: str, value: Expr, offset: int) -> Expr:
    """Return the value of the lane whose number differs in the bits of ``offset``, among all 32 lanes of a warp."""
    mask, width = const(0xFFFFFFFF, "uint32"), const(32, "int32")
    if HAS_TIRX:
        return intrinsic(dtype, "tvm_warp_shuffle_xor", mask, value, const(offset, "int32"), width, width)
    # TVMs with Relay have builtins for the other shuffles only.
    return tir.call_extern(dtype, "__shfl_xor_sync", mask, value, const(offset, "int32"), width)


def substitute(expr: Expr, values: Mapping[Var, Expr]) -> Expr:
    """Return the expression with variables replaced (in loads' indices too)."""
    if not values or kind(expr) in _CONSTANTS:
        return expr
    if not HAS_TIRX:
        return tir.stmt_functor.substitute(expr, dict(values))
    # The function behind ``structural_map``, which takes longer over its arguments than this function over an
    # index.
    done = _map(expr, [(_VARIABLES, lambda var: values.get(var, var))], (), _BEHIND)
    return expr if done.same_as(expr) else done


def parts(expr: Expr) -> Iterator[Expr]:
    """Yield an expression and all its sub-expressions, including indices of loads, each before its operands.

    Raises:
        NotImplementedError: for an unknown kind of node.
    """
    waiting = [expr]
    while waiting:
        current = waiting.pop()
        yield current
        waiting += reversed(operands(current))


def free_vars(expr: Expr) -> set[Var]:
    """Return the scalar variables that an expression reads and does not bind (buffers excluded)."""
    if HAS_TIRX:
        return {var for var in elements(tir.analysis.undefined_vars(expr)) if kind(var.ty) != "BufferType"}
    return {var for var in elements(tir.analysis.undefined_vars(expr, [])) if var.dtype != "handle"}


def bind_range(analyzer: Any, var: Var, extent: Expr, least: int = 0) -> None:
    """Tell an analyzer that ``least <= var < extent``."""
    analyzer.bind(var, tvm.ir.Range(const(least, "int64"), extent))


def lanes_of(expr: Expr) -> int:
    """Return how many scalars an expression holds: 1 unless it is a vector."""
    _, _, lanes = dtype_of(expr).rpartition("x")
    return int(lanes) if lanes.isdigit() else 1


def loads_in(expr: Expr) -> list[Expr]:
    """Return all reads of buffer elements under an expression of any kind, those in indices included."""
    loads: list[Expr] = []
    if HAS_TIRX:
        structural_walk(expr, (tvm.ir.TensorLoad, loads.append), order="post")
    else:
        tir.stmt_functor.post_order_visit(expr, lambda e: loads.append(e) if is_load(e) else None)
    return loads


def has_load(expr: Expr) -> bool:
    """Return whether the expression reads any buffer."""
    if kind(expr) in LEAVES:
        return False
    if not HAS_TIRX:
        return any(map(is_load, parts(expr)))
    return any(kind(var.ty) == "BufferType" for var in elements(tir.analysis.undefined_vars(expr)))


def llvm_intrinsic(dtype: str, name: str, *args: Expr) -> Expr | None:
    """Return a call of an LLVM intrinsic by name, or None on a TVM that requires its signature."""
    return tir.call_llvm_pure_intrin(dtype, name, *args) if HAS_TIRX else None


def device_function_call(dtype: str, name: str, source: str, *args: Expr) -> Expr:
    """Return a call of this package's device function, with its CUDA C if TVM accepts it
    (``DECLARES_DEVICE_FUNCTIONS``).
    """
    if DECLARES_DEVICE_FUNCTIONS:
        return T.cuda.func_call(name, *args, source_code=source, return_type=dtype)
    return tir.call_pure_extern(dtype, name, *args)
