# SPDX-License-Identifier: Apache-2.0
"""The readers of each variable of a Relax function."""

from __future__ import annotations

from tvm import relax
from tvm.relax import DataflowVar
from tvm.relax.expr_functor import PyExprVisitor, visitor

from .operators import operator_name

Readers = dict[relax.Var, list[relax.Binding]]
"""The bindings that read each variable, in order, one entry for each read. An entry None says that it is a result."""


def readers_of(func: relax.Function) -> Readers:
    """Return the readers of the variables of a function."""
    readers = _Readers()
    readers.visit_expr(func)
    return readers.readers


def only_reader(readers: Readers, var: relax.Expr) -> relax.Binding | None:
    """Return the binding that alone reads a variable, once. None if several do, or the variable is a result."""
    bindings = readers.get(var, ())
    return bindings[0] if len(bindings) == 1 else None


def only_reader_inside(readers: Readers, var: relax.Expr) -> relax.Binding | None:
    """Return :func:`only_reader` of a variable that is not seen outside its dataflow block, or None for others."""
    return only_reader(readers, var) if isinstance(var, DataflowVar) else None


def reader_name(reader: relax.Binding | None) -> str:
    """Return the name of the operator that reads a value, or "" for a result and for what calls no operator."""
    return "" if reader is None else operator_name(reader.value)


@visitor
class _Readers(PyExprVisitor):
    def __init__(self) -> None:
        self.readers: Readers = {}
        self.binding: relax.Binding | None = None

    def visit_var_binding_(self, binding: relax.Binding) -> None:
        outer, self.binding = self.binding, binding
        self.visit_expr(binding.value)
        self.binding = outer

    visit_match_cast_ = visit_var_binding_

    def visit_seq_expr_(self, seq: relax.SeqExpr) -> None:
        outer, self.binding = self.binding, None
        for block in seq.blocks:
            self.visit_binding_block(block)
        self.visit_expr(seq.body)
        self.binding = outer

    def visit_var_(self, var: relax.Var) -> None:
        self.readers.setdefault(var, []).append(self.binding)

    visit_dataflow_var_ = visit_var_

    def visit_var_def_(self, var: relax.Var) -> None:
        """Ignore definitions, which are not uses."""
