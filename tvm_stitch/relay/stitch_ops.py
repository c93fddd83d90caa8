# SPDX-License-Identifier: Apache-2.0
"""The pass StitchOps: outline every stitch scope of a Relay module into one Primitive function."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import tvm
from tvm import relay

from ..compute.anchored import reads_permuted
from ..config import StitchConfig, checked_config
from ..records.decisions import decided, decisions_of, fresh
from ..scope.epilogue import no_template
from ..scope.for_target import identify_for
from ..scope.identified import Identified, Scope
from ..scope.node import Node, Value
from ..support.failures import raise_where_strict, reason_of
from ..support.interrupts import check
from ..support.module_pass import module_pass
from ..support.resilient import Reasons, UnitsFailed, resilient
from ..target import resolve_target
from .dataflow import Region, results_of, view
from .lower import PRIMITIVE, OpReader, type_of
from .templates.choice import Templates
from .traverse import children, remake, with_bodies

STITCH_ATTR = "tvm_stitch.stitch_op"
"""Function attribute that marks a stitch op. Its value names the scope within the module."""

TEMPLATE_ATTR = "tvm_stitch.template"
"""Function attribute that marks a template's operator with its epilogue. Its value names the scope within the
module.
"""

RESHAPE_ONLY = "relay.reshape_only"
"""TVM's attribute of primitive functions that move nothing."""

Known: TypeAlias = dict[tuple[Any, frozenset[str]], tuple[Region, Identified]]
"""Analysed regions, by root and excluded scopes."""


@module_pass
class StitchOps:
    """Replace TVM's fusion for memory-intensive operators.

    Runs on a typed module before ``FuseOps``, which does not touch functions that are primitive, and fuses the
    rest. Every stitch scope (AStitch 4.1) becomes a primitive function literal marked with
    ``tvm_stitch.stitch_op``. Matmul epilogues become primitive functions without the mark. Operators that
    ``templates`` compute, with their epilogues, become functions marked with ``tvm_stitch.template``, which
    ``ComputeTemplates`` processes. A scope that cannot be outlined is left to TVM.

    The module's decisions (``tvm_stitch.records.decisions``) say which scopes are excluded. They receive the
    boundaries between kernels, the names of the outlined scopes, and the calls and scopes that are left to TVM.
    They also receive the reasons why compute-intensive calls have no template.

    Args:
        config: options. The defaults suit most models.
        target: the module's target. By default the current target, else llvm.
        exclude: names of further scopes that are left to TVM.
        reader: reads operators.
        templates: the operators that templates compute.

    Raises:
        StitchError: under ``StitchConfig(strict=True)``, if a call or scope is left to TVM.
    """

    def __init__(
        self,
        config: StitchConfig | None = None,
        target: Any = None,
        exclude: Collection[str] = (),
        reader: OpReader | None = None,
        templates: Templates | None = None,
    ):
        self.config = checked_config(config)
        self.target = resolve_target(target or tvm.target.Target.current(allow_none=True) or "llvm")
        self.exclude = frozenset(exclude)
        self.reader = reader or OpReader(self.target)
        self.templates = templates

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Return the module with the scopes of every function outlined."""
        mod = relay.transform.InferType()(mod)
        always = self.exclude.union(decisions_of(mod).excluded)
        known: Known = {}

        def step(excluded: Mapping[str, Reasons]) -> tuple[tvm.IRModule, Mapping[str, Reasons]]:
            self.found: list[Identified] = []
            self.outlined: list[str] = []
            self.whys: list[tuple[str, str]] = []
            self.unread: dict[str, str] = {}
            return self._outlined(mod, always.union(excluded), known), excluded

        new, excluded = resilient(step, lambda _: {}, strict=self.config.strict)
        left, computed = dict(self.unread), dict[str, str]()
        for identified in self.found:
            left |= identified.left
        for reasons in excluded.values():
            left |= dict(reasons)
        for call, why in self.whys:
            computed[fresh(call, computed)] = f"TVM: {why}"
        return decided(
            new,
            boundaries=[boundary for identified in self.found for boundary in identified.boundaries],
            left=left,
            computed=computed,
            outlined={name: name for name in self.outlined},
        )

    def _outlined(self, mod: tvm.IRModule, exclude: frozenset[str], known: Known) -> tvm.IRModule:
        def outlined(name: str, func: Any) -> Any:
            return func.body if _is_outlined(func) else self._region(func.body, name, exclude, known)

        return with_bodies(mod, outlined)

    def _region(self, root: Any, prefix: str, exclude: frozenset[str], known: Known) -> Any:
        check()
        key = root, exclude
        if key not in known:
            try:
                region = view(root, self.reader, self.templates)
                identified = identify_for(
                    region.nodes, self.target, self.config, topi=True,
                    excluded=lambda nodes, _graph: f"{prefix}/{nodes[0].index}" in exclude,
                    template=self.templates.serves if self.templates is not None else no_template,
                    permuted=reads_permuted if self.templates is not None else no_template,
                )  # fmt: skip
                known[key] = region, identified
            except Exception as err:
                raise_where_strict(err, prefix, self.config.strict)
                self.unread[prefix] = reason_of(err, prefix)
                return root
        region, identified = known[key]
        identified.checked_left(self.config)
        self.found.append(identified)
        self.whys += [(node.name, why) for node, why in region.computed.items()]

        def inner(e: Any, name: str) -> Any:
            return self._region(e, name, exclude, known)

        outliner = _Outliner(region, identified, prefix, exclude, inner, self.templates, self.config.strict)
        body = outliner.run()
        self.outlined += outliner.outlined
        return body


def _is_outlined(func: Any) -> bool:
    return bool(func.attrs and (PRIMITIVE in func.attrs or "Compiler" in func.attrs))


@dataclass
class _Outliner:
    """Rebuilds a region, unit by unit in an executable order."""

    region: Region
    found: Identified
    prefix: str
    exclude: Collection[str]
    inner: Any
    templates: Templates | None
    strict: bool

    def __post_init__(self) -> None:
        self.new: dict[Value, Any] = {}  # the new expression of each value
        self.bound = {v: var for var in self.region.lets for v in [self.region.value(var)]}
        self.lets: list[tuple[Any, Any]] = []
        self.written: set[Any] = set()  # variables that are bound again
        self.outlined: list[str] = []

    def run(self) -> Any:
        scope_of = {n: s for s in self.found.scopes for n in s.nodes}
        epilogue_of = {n: e for e in self.found.epilogues for n in e}
        for nodes in self.found.order:
            scope = scope_of.get(nodes[0])
            name = f"{self.prefix}/{nodes[0].index}"
            tiled = self._has_template(nodes)
            outlines = scope is not None or tiled or nodes[0] in epilogue_of
            if outlines and name not in self.exclude:
                self.outlined.append(name)
                try:
                    if scope is not None:
                        self._outline(scope, {STITCH_ATTR: name})
                    else:
                        self._outline(self._epilogue(nodes), {TEMPLATE_ATTR: name} if tiled else {})
                except Exception as err:
                    raise_where_strict(err, name, self.strict)
                    raise UnitsFailed({name: ((name, reason_of(err, name)),)}) from err
            else:
                for node in nodes:
                    self._keep(node)
        result = self.rebuilt(self.region.result)
        for var, value in reversed(self.lets):
            result = relay.Let(var, value, result)
        return result

    def _epilogue(self, nodes: list[Node]) -> Scope:
        graph = nodes[0].graph
        assert graph is not None
        return Scope(nodes, *self.found.interface(nodes), graph)

    def _has_template(self, nodes: list[Node]) -> bool:
        """Return whether a template computes one of the nodes."""
        templates = self.templates
        return templates is not None and any(n.graph is not None and templates.serves(n.graph) for n in nodes)

    # -- units --------------------------------------------------------------------------------------------------
    def _keep(self, node: Node) -> None:
        old = self.region.expr[node]
        new = old
        if isinstance(old, relay.If):
            both = enumerate((old.true_branch, old.false_branch))
            branches = [self.inner(branch, f"{self.prefix}/{node.index}.{i}") for i, branch in both]
            new = relay.If(self.rebuilt(old.cond), *branches, old.span)
        elif (
            node.is_view
            and old.op.get_attr("TReshapeOp")
            and isinstance(self.rebuilt(old.args[0]), relay.TupleGetItem)
        ):  # of one result of several
            new = self._view(old)
        elif not isinstance(old, relay.Let):
            new = remake(old, [self.rebuilt(c) for c in children(old)])
        for var in relay.analysis.free_vars(old):
            self._bind_again(var)
        self._define(old, new)

    def _view(self, reshape: Any) -> Any:
        """Return a reshape of one result of several as a primitive function.

        TVM would fuse the reshape with the access, and copy. Alone it costs nothing.
        """
        param = relay.Var("p0", reshape.args[0].checked_type)
        args = [param, *reshape.args[1:]]
        func = relay.Function([param], relay.Call(reshape.op, args, reshape.attrs, reshape.type_args))
        for attr in (PRIMITIVE, RESHAPE_ONLY):
            func = func.with_attr(attr, tvm.tir.IntImm("int32", 1))
        return relay.Call(func, [self.rebuilt(reshape.args[0])])

    def _outline(self, scope: Scope, marks: dict[str, str]) -> None:
        func = self._function(scope)
        func = func.with_attr(PRIMITIVE, tvm.tir.IntImm("int32", 1))
        for attr, name in marks.items():
            func = func.with_attr(attr, name)
        call: Any = relay.Call(func, [self.rebuilt(v) for v in scope.inputs])
        if len(scope.outputs) == 1:
            self.new[scope.outputs[0]] = call
        else:
            if self.region.lets:
                var = relay.Var("stitched")
                self.lets.append((var, call))
                call = var
            for i, value in enumerate(scope.outputs):
                self.new[value] = relay.TupleGetItem(call, i)
        for value in scope.outputs:
            self._bind(value)

    def _function(self, scope: Scope) -> Any:
        inside: dict[Value, Any] = {}
        params = []
        for i, value in enumerate(scope.inputs):
            params.append(relay.Var(f"p{i}", type_of(value)))
            inside[value] = params[-1]

        def fill(expr: Any) -> Any:
            value = self.region.value(expr)
            if value in inside:
                return inside[value]
            if isinstance(value, relay.Tuple):
                return relay.Tuple([fill(f) for f in value.fields])
            if value in self.region.several:
                return relay.Tuple([inside[v] for v in results_of(value)])
            return value  # a scalar constant

        for node in scope.nodes:
            old = self.region.expr[node]
            new = relay.Call(old.op, [fill(a) for a in old.args], old.attrs, old.type_args)
            if len(node.outputs) == 1 and not isinstance(node.outputs[0], tuple):
                inside[node.outputs[0]] = new
            else:
                inside |= {v: relay.TupleGetItem(new, i) for i, v in enumerate(node.outputs)}
        results = [inside[v] for v in scope.outputs]
        return relay.Function(params, results[0] if len(results) == 1 else relay.Tuple(results))

    # -- values -------------------------------------------------------------------------------------------------
    def rebuilt(self, expr: Any) -> Any:
        """Return the new expression for an expression or value."""
        value = expr if isinstance(expr, tuple) else self.region.value(expr)
        if value in self.new:
            return self.new[value]
        if isinstance(value, relay.Tuple):
            return relay.Tuple([self.rebuilt(f) for f in value.fields], value.span)
        if value in self.region.several:
            return relay.Tuple([self.new[v] for v in results_of(value)])
        return value

    def _define(self, old: Any, new: Any) -> None:
        """Record ``new`` as the new form of a kept expression."""
        self.new[old] = new
        self._bind(old)
        if old in self.region.several:
            items = enumerate(results_of(old))
            self.new |= {value: relay.TupleGetItem(self.new[old], i) for i, value in items}

    def _bind(self, value: Value) -> None:
        """Bind the variable of a ``let`` that named the value again."""
        var = self.bound.get(value)
        if var is not None and var not in self.written:
            self.lets.append((var, self.new[value]))
            self.written.add(var)
            self.new[value] = var

    def _bind_again(self, var: Any) -> None:
        """Bind a variable that code which is not analysed refers to."""
        if var in self.region.lets and var not in self.written:
            self.lets.append((var, self.rebuilt(var)))
            self.written.add(var)


def is_marked(expr: Any) -> bool:
    """Return whether an expression is a function literal that :class:`StitchOps` outlined as a stitch op."""
    return isinstance(expr, relay.Function) and bool(expr.attrs) and STITCH_ATTR in expr.attrs
