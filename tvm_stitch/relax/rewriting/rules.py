# SPDX-License-Identifier: Apache-2.0
"""Rules that rewrite Relax functions, and the one traversal that applies them.

A rule names the values that it applies to. These are calls of some operators, or calls that match a pattern of TVM's
dataflow pattern language (DPL). They may also be the values of variables that a search chose before.

:func:`apply_rules` visits each function once, in the order of the program. The operands of a value are rewritten
before the value. The first rule that gives a replacement is taken, and no rule sees the replacement again.

The model is the pattern matcher of tinygrad: a pass is a list of rules, and no pass has a mutator of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tvm
from tvm import relax
from tvm.relax.dpl import DFPattern
from tvm.relax.expr_functor import PyExprMutator, mutator

from .contents import Contents, contents_of
from .functions import own_functions
from .operators import operator_name
from .readers import Readers, readers_of
from .rebound import rebound
from .views import definition

CALL = "any call"
"""The operator of a rule that applies to calls of all operators and functions."""
ITEM = "tuple item"
"""The operator of a rule that applies to elements of tuples."""


class Match:
    """A value that a rule applies to, and the means to build its replacement.

    Attributes:
        name: the name of the operator that the value calls, or "" if it calls none.
        before: the value in the function before.
        var: the variable that the value is bound to, in the function before.
        block: the binding block of the value, in the function before.
        found: the expression of the function before that each part of the rule's pattern matches.
    """

    __slots__ = ("_rewriter", "_value", "before", "block", "found", "name", "var")

    def __init__(self, rewriter: _Rewriter, before: relax.Expr, name: str):
        self._rewriter, self.before, self._value, self.name = rewriter, before, None, name
        self.var, self.block = rewriter.var, rewriter.block
        self.found: Mapping[DFPattern, relax.Expr] = {}

    @property
    def value(self) -> relax.Expr:
        """The value with its operands rewritten."""
        if self._value is None:
            self._value = self._rewriter.with_operands(self.before)
        return self._value

    @property
    def builder(self) -> relax.BlockBuilder:
        """The builder of the function after."""
        return self._rewriter.builder_

    @property
    def is_inside(self) -> bool:
        """True if no other block, and no caller, sees the value."""
        return isinstance(self.var, relax.DataflowVar)

    @property
    def values(self) -> Mapping[relax.Var, relax.Expr]:
        """The values of all variables of the function before."""
        return self._rewriter.values

    @property
    def readers(self) -> Readers:
        """The bindings that read each variable of the function before."""
        return self._rewriter.readers

    @property
    def notes(self) -> dict[relax.Var, Any]:
        """Notes of rules about variables of this block. They are empty at the beginning of the next block."""
        return self._rewriter.notes

    def finds(self, pattern: DFPattern) -> bool:
        """Return True if the value matches a pattern, and the pattern's parts can be read at the value's position."""
        matched = pattern.extract_matched_expr(self.before, self.values)
        if matched is None:
            return False
        self.found, parts = matched, list(matched.values())
        operands = [arg for part in parts if isinstance(part, relax.Call) for arg in part.args]
        inner = [arg for arg in operands if any(part.same_as(self.values.get(arg)) for part in parts)]
        return all(definition(self.values, arg) is not None for arg in inner)

    def now(self, expr: relax.Expr) -> relax.Expr:
        """Return an expression of the function before as it is in the function after."""
        return self._rewriter.visit_expr(expr)

    def definition(self, value: relax.Expr) -> relax.Call | None:
        """Return the call that a variable of the function after is bound to, or None.

        The operands of the call must be readable in this block.
        """
        if not isinstance(value, relax.Var):
            return None
        call = self._rewriter.lookup_binding(value)
        if not isinstance(call, relax.Call):
            return None
        if isinstance(value, relax.DataflowVar) or value in self._rewriter.results:
            return call
        return None if any(isinstance(arg, relax.DataflowVar) for arg in call.args) else call

    def emit(self, value: relax.Expr, name: str = "") -> relax.Var:
        """Bind a value before the replacement, inside the block."""
        return self.builder.emit(value, name)


@dataclass(frozen=True, eq=False)
class Rule:
    """One way to rewrite a value.

    Attributes:
        why: the purpose of the rule.
        rewrite: returns the replacement of a match, or None if the value stays.
        operators: the operators whose calls the rule applies to, and also :data:`CALL` and :data:`ITEM`.
        pattern: the rule applies only to calls that match it, with all parts visible at the position of the call.
        needs: operators that a module must have for the rule to apply: one of each of these collections.
        when: a cheap test of a call in the function before. The rule changes no module without a call that passes it.
        variables: the rule applies to calls and elements of tuples that these variables are bound to.
        leaves_unused: whether a replacement may leave values that nothing reads any more. They are dropped.
    """

    why: str
    rewrite: Callable[[Match], relax.Expr | None]
    operators: Collection[str] = ()
    pattern: DFPattern | None = None
    variables: Collection[relax.Var] = ()
    leaves_unused: bool = False
    needs: Collection[Collection[str]] = ()
    when: Callable[[relax.Expr], bool] | None = None


def apply_rules(
    mod: tvm.IRModule, rules: Sequence[Rule], *, unique_names: bool = False, inlines_constants: bool = False
) -> tvm.IRModule:
    """Return the module with its own Relax functions rewritten by rules, or the module itself if no value changes.

    Args:
        mod: a module. Functions that passes made of calls (``Primitive``) stay as they are.
        rules: the rules, the first choice first.
        unique_names: whether no value that a rule binds in a dataflow block gets the name of another value.
        inlines_constants: whether a variable that is bound to a constant is read as the constant.
    """
    contents = [contents_of(func) for _, func in own_functions(mod)]
    rules = [rule for rule in rules if _may_apply(rule, contents)]
    if not rules and not (inlines_constants and any(map(_binds_constants, contents))):
        return mod
    rewriter = (_Inlining if inlines_constants else _Naming if unique_names else _Plain)(mod, rules)
    for gvar, func in own_functions(mod):
        rewriter.rewrite(gvar, func)
    return rewriter.builder_.get() if rewriter.changed else mod


def _may_apply(rule: Rule, contents: Sequence[Contents]) -> bool:
    """Return whether functions have the operators that a rule needs, and a call that it may rewrite."""
    if not all(any(name in each for each in contents for name in names) for names in rule.needs):
        return False
    if rule.variables or not set(rule.operators).isdisjoint((CALL, ITEM)):
        return True
    calls = (call for each in contents for name in rule.operators for call in each.get(name, ()))
    return any(rule.when is None or rule.when(call) for call in calls)


def _binds_constants(contents: Contents) -> bool:
    return any(isinstance(value, tvm.ir.GenericConst) for value in contents.get("", ()))


class _Rewriter(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, rules: Sequence[Rule]):
        super().__init__(mod)
        names = {CALL, ITEM}.union(*(rule.operators for rule in rules))
        self.of_operator = {
            name: [
                rule for rule in rules if name in rule.operators or (name != ITEM and CALL in rule.operators)
            ]
            for name in names
        }
        self.of_calls = self.of_operator[CALL]
        self.of_variable: dict[relax.Var, list[Rule]] = {}
        for rule in rules:
            for var in rule.variables:
                self.of_variable.setdefault(var, []).append(rule)
        self.changed = False  # whether the module changed
        self.inlined = False  # whether a constant of the function was inlined
        self.func: relax.Function | None = None
        self.applied: list[Rule] = []  # the rules applied in the function
        self.block: relax.BindingBlock = None
        self.var: relax.Var = None
        self.bound: relax.Expr | None = None
        self.notes: dict[relax.Var, Any] = {}
        self.results: set[relax.Var] = set()  # the block's results, in the function after

    def rewrite(self, gvar: tvm.ir.GlobalVar, func: relax.Function) -> None:
        """Rewrite a function of the module."""
        self.func, self.applied, self.inlined = func, [], False
        self._forget("values", "readers")
        rewritten = self.visit_expr(func)
        if not self.applied and not self.inlined:
            return
        self.changed = True
        if any(rule.leaves_unused for rule in self.applied):
            rewritten = relax.analysis.remove_all_unused(rewritten)
        self.builder_.update_func(gvar, rewritten)

    @cached_property
    def values(self) -> Mapping[relax.Var, relax.Expr]:
        """Return the values of the variables of the function before."""
        return relax.analysis.get_var2val(self.func)

    @cached_property
    def readers(self) -> Readers:
        """Return the bindings that read each variable of the function before."""
        return readers_of(self.func)

    def with_operands(self, value: relax.Expr) -> relax.Expr:
        """Return a value with its operands rewritten."""
        is_call = isinstance(value, relax.Call)
        return super().visit_call_(value) if is_call else super().visit_tuple_getitem_(value)

    def visit_binding_block_(self, block: relax.BindingBlock) -> relax.BindingBlock:
        """Rewrite a block."""
        return self._in_block(block, super().visit_binding_block_)

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.BindingBlock:
        """Rewrite a block."""
        return self._in_block(block, super().visit_dataflow_block_)

    def _in_block(self, block: relax.BindingBlock, visit: Callable[[Any], Any]) -> relax.BindingBlock:
        outer, self.block = self.block, block
        self.notes, self.results = {}, set()
        rewritten = visit(block)
        self.block = outer
        return rewritten

    def _forget(self, *names: str) -> None:
        for name in names:
            self.__dict__.pop(name, None)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Record the variable, and rewrite its value."""
        self.var, self.bound = binding.var, binding.value
        super().visit_var_binding_(binding)
        if not isinstance(binding.var, relax.DataflowVar):
            self.results.add(self.visit_expr(binding.var))

    def visit_call_(self, call: relax.Call) -> relax.Expr:  # pylint: disable=arguments-renamed
        """Rewrite a call."""
        name = operator_name(call)
        rules = self.of_operator.get(name, self.of_calls)
        if not rules and not self.of_variable:
            return super().visit_call_(call)
        return self._replaced(call, name, rules)

    def visit_tuple_getitem_(self, item: relax.TupleGetItem) -> relax.Expr:  # pylint: disable=arguments-renamed
        """Rewrite an element of a tuple."""
        return self._replaced(item, "", self.of_operator[ITEM])

    def _replaced(self, before: relax.Expr, name: str, rules: Sequence[Rule]) -> relax.Expr:
        """Return the replacement by the first rule that gives one, or the value with its operands rewritten."""
        if self.of_variable and before.same_as(self.bound):
            rules = [*self.of_variable.get(self.var, ()), *rules]
        if not rules:
            return self.with_operands(before)
        match = Match(self, before, name)
        for rule in rules:
            if rule.pattern is not None and not match.finds(rule.pattern):
                continue
            replacement = rule.rewrite(match)
            if replacement is not None:
                self.applied.append(rule)
                return replacement
        return match.value


@mutator
class _Plain(_Rewriter):
    pass


@mutator
class _Naming(_Rewriter):
    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        var, value = binding.var, binding.value
        if not isinstance(self.block, relax.DataflowBlock):
            super().visit_var_binding_(binding)
            return
        self.var, self.bound = var, value
        bound = rebound(self, var, self.visit_expr(value))
        if not isinstance(var, relax.DataflowVar):
            self.results.add(bound)


@mutator
class _Inlining(_Rewriter):
    def visit_dataflow_var_(self, var: relax.DataflowVar) -> relax.Expr:  # pylint: disable=arguments-renamed
        bound = self.lookup_binding(var)
        if not isinstance(bound, tvm.ir.GenericConst):
            return super().visit_dataflow_var_(var)
        self.inlined = True
        return bound
