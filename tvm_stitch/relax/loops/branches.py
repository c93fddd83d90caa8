# SPDX-License-Identifier: Apache-2.0
"""Branches: each one is a private function, and the condition chooses which function is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from .functions import branch, private_function, symbols_of
from .loop import text_of

Branch = Callable[[list[Any]], Sequence[Any]]
"""Emits a branch, given the values that both branches read, and returns its results."""


class UnequalBranches(ValueError):
    """Two branches return results of different types."""


def choice(
    builder: relax.BlockBuilder,
    name: str,
    condition: relax.Expr,
    values: Sequence[relax.Expr],
    yes: Branch,
    no: Branch,
    sizes: Sequence[Any] = (),
) -> list[relax.Expr]:
    """Emit a choice between two branches and return its results.

    Results whose sizes differ get new variables as sizes, which are known when the model runs.

    Args:
        builder: the builder of the surrounding function.
        name: the first choice of a name for the functions.
        condition: a bool tensor without axes.
        values: values that the branches read. Constants are read without being passed.
        yes, no: emit the branches, each in a dataflow block.
        sizes: variables of shapes that a branch uses, in addition to those of the values.

    Raises:
        UnequalBranches: if the branches differ in the number, types or axes of results.
    """
    passed = [value for value in values if not isinstance(value, tvm.ir.GenericConst)]
    types = [value.ty for value in passed]
    symbols = list(dict.fromkeys([*symbols_of(types), *sizes]))

    def params() -> list[relax.Var]:
        at = relax.Var("at", relax.ShapeType(symbols))
        return [at, *(relax.Var(f"v{i}", ty) for i, ty in enumerate(types))]

    found: list[list[Any]] = []

    def body(of: Branch) -> Callable[[list[Any]], Any]:
        def emitted(given: list[Any]) -> list[Any]:
            left = iter(given[1:])
            own = [value if isinstance(value, tvm.ir.GenericConst) else next(left) for value in values]
            results = [e if isinstance(e, relax.Var) else builder.emit(e) for e in of(own)]
            found.append([each.ty for each in results])
            return results

        return emitted

    functions = [
        private_function(builder, f"{name}_{word}", params(), body(of))
        for word, of in (("then", yes), ("else", no))
    ]
    results = _results(name, *found)

    def chosen(given: list[Any]) -> Any:
        at = relax.ShapeExpr(symbols)
        calls = [
            branch(builder, partial(builder.emit, relax.Call(function, [at, *given[2:]])))
            for function in functions
        ]
        return builder.emit(relax.If(given[0], *calls))

    whole = [relax.Var("condition", condition.ty), *params()]
    function = private_function(
        builder, name, whole, chosen, straight=False, result=tvm.ir.TupleType(results)
    )
    done = builder.emit(relax.Call(function, [condition, relax.ShapeExpr(symbols), *passed]))
    return [_sized(builder, builder.emit(relax.TupleGetItem(done, i)), name) for i in range(len(results))]


def _results(name: str, yes: list[Any], no: list[Any]) -> list[Any]:
    """Return the types of results that fit both branches."""
    if len(yes) != len(no):
        raise UnequalBranches(f"the branches of {name} return {len(yes)} and {len(no)} results")
    made = []
    for number, (a, b) in enumerate(zip(yes, no, strict=True)):
        if tvm_ffi.structural_equal(a, b):
            made.append(a)
        elif str(a.dtype) == str(b.dtype) and a.ndim == b.ndim >= 0:
            made.append(relax.TensorType(dtype=str(a.dtype), ndim=a.ndim))
        else:
            raise UnequalBranches(
                f"result {number} of {name} is {text_of(a)} in one branch and {text_of(b)} in the other; "
                "the branches of a compiled model return equal types with equal numbers of axes"
            )
    return made


def _sized(builder: relax.BlockBuilder, value: Any, name: str) -> Any:
    """Return a tensor with a variable for each size that is not known yet."""
    if isinstance(value.ty.shape, relax.ShapeExpr) or value.ty.ndim == 0:
        return value
    sizes = [tirx.Var(f"{name}_size{i}", "int64") for i in range(value.ty.ndim)]
    return builder.match_cast(value, relax.TensorType(sizes, str(value.ty.dtype)))
