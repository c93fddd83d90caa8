# SPDX-License-Identifier: Apache-2.0
"""StitchOps: outline every stitch scope of a Relax module into one Primitive function."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, TypeAlias

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ... import compat
from ...compute.anchored import has_template, reads_permuted
from ...compute.templates import has_templates
from ...config import StitchConfig, checked_config
from ...graph.fingerprint import fingerprint
from ...records.decisions import add_all, decided, decisions_of
from ...scope.epilogue import no_template
from ...scope.for_target import identify_for
from ...scope.identified import Boundary, Identified
from ...scope.identify import none_excluded
from ...scope.node import Node, Value
from ...support.failures import raise_where_strict, reason_of
from ...support.interrupts import carrying, check
from ...support.module_pass import module_pass
from ...support.resilient import Reasons, UnitsFailed, resilient
from ..rewriting.rebound import rebound
from .dataflow import BlockView, GraphReader, call_args, flow_of, view_block
from .numbers import with_numbers

STITCH_ATTR = "tvm_stitch.stitch_op"
"""Function attribute that marks a stitch op, on the Primitive function and on FuseTIR's result for it."""

Known: TypeAlias = dict[tuple[Any, frozenset[str]], tuple[BlockView, Identified]]
"""The view and the scopes of a dataflow block, by the block and the scopes that were excluded."""


@module_pass
class StitchOps:
    """Replace TVM's fusion for memory-intensive operators.

    Runs after ``LegalizeOps``. Every stitch scope (AStitch 4.1) becomes a Primitive function, marked with
    ``tvm_stitch.stitch_op``. Matmul epilogues become Primitive functions of their own, unmarked. ``FuseTIR`` merges
    each into one PrimFunc. A scope that cannot be outlined is left to TVM.

    The module's decisions (``tvm_stitch.records.decisions``) say which scopes are excluded. They receive the
    boundaries between kernels, the names of the outlined scopes, and the reasons for calls that no scope could take.

    Args:
        config: options. The defaults suit most models.
        exclude: further scopes that are left to TVM.

    Raises:
        StitchError: under ``StitchConfig(strict=True)``, when there is such a call or scope.
    """

    def __init__(self, config: StitchConfig | None = None, exclude: Collection[str] = ()):
        self.config = checked_config(config)
        self.exclude = frozenset(exclude)
        self._known: Known = {}

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Outline the scopes of every function of the module."""
        always, known = self.exclude.union(decisions_of(mod).excluded), self._known

        def step(excluded: Mapping[str, Reasons]) -> tuple[_Stitcher, Mapping[str, Reasons]]:
            stitcher = _Stitcher(mod, self.config, always.union(excluded), known)
            for gvar, func in mod.functions_items():
                if isinstance(func, relax.Function) and not _is_primitive(func):
                    stitcher.builder_.update_func(gvar, stitcher.visit_expr(func))
            return stitcher, excluded

        stitcher, excluded = resilient(step, lambda _: {}, strict=self.config.strict)
        used = {key: known[key] for key in stitcher.used}
        # Another attempt on this module finds the same. A pass that is kept holds no other module.
        self._known = {
            key: identified for key, identified in known.items() if key[0] in {block for block, _ in used}
        }
        failed: dict[str, str] = {}
        for reasons in excluded.values():
            add_all(failed, reasons)
        return decided(
            stitcher.builder_.get(),
            outlined=stitcher.scopes,
            left=stitcher.left | failed,
            boundaries=stitcher.boundaries,
            flows=[flow_of(view, identified) for view, identified in used.values()],
        )


def _is_primitive(func: Any) -> bool:
    return bool(func.attrs and ("Primitive" in func.attrs or "Codegen" in func.attrs))


@mutator
class _Stitcher(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, config: StitchConfig, exclude: frozenset[str], known: Known):
        super().__init__(mod)
        self.known, self.exclude = known, exclude
        self.used: list[tuple[Any, frozenset[str]]] = []
        self.scopes: dict[str, str] = {}
        self.left: dict[str, str] = {}
        self.target = tvm.target.Target.current(allow_none=True)
        self.reader = GraphReader(mod)
        self.config = config
        self.boundaries: list[Boundary] = []

    @carrying
    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.DataflowBlock:
        check()
        key = block, self.exclude
        if key not in self.known:
            try:
                view = view_block(block, self.reader)
                templates, but = has_templates(self.target, self.config), self.config.of_tvm
                identified = identify_for(
                    view.nodes,
                    self.target,
                    self.config,
                    excluded=(lambda _nodes, g: fingerprint(g) in self.exclude)
                    if self.exclude
                    else none_excluded,
                    template=partial(has_template, but=but) if templates else no_template,
                    permuted=partial(reads_permuted, but=but) if templates else no_template,
                )
                self.known[key] = view, identified
            except Exception as err:
                name = f"the block of {block.bindings[0].var.name}"
                raise_where_strict(err, name, self.config.strict)
                self.left[name] = reason_of(err, name)
                return super().visit_dataflow_block_(block)
        view, identified = self.known[key]
        self.used.append(key)
        self.boundaries += identified.boundaries
        self.left |= identified.checked_left(self.config)
        self.builder_._begin_dataflow_block()
        try:
            self._emit_units(view, identified)
        finally:
            ended = self.builder_._end_block()
        return ended

    def _emit_units(self, view: BlockView, identified: Identified) -> None:
        scope_of = {n: s for s in identified.scopes for n in s.nodes}
        for nodes in identified.order:
            scope = scope_of.get(nodes[0])
            if scope is not None:
                name = fingerprint(scope.graph)
            else:
                name = f"{_name('fused', nodes)} at {nodes[0].index}"
            if (scope is None and len(nodes) == 1) or name in self.exclude:
                for node in nodes:
                    self._keep(view, node, node in identified.views)
                continue
            taken = scope is None and nodes[0].takes is not None
            if taken:  # a later pass lets the kernel compute the nodes behind it
                self._keep(view, nodes[0], False)
                nodes = nodes[1:]
            inputs, outputs = (
                (scope.inputs, scope.outputs) if scope is not None else identified.interface(nodes)
            )
            try:
                gvar = self._outline(view, nodes, inputs, outputs, stitch=scope is not None or taken)
            except Exception as err:
                title = _name("stitch", nodes)
                raise_where_strict(err, title, self.config.strict)
                raise UnitsFailed({name: ((title, reason_of(err, title)),)}) from err
            self.scopes[gvar.name_hint] = name

    def _keep(self, view: BlockView, node: Node, is_view: bool) -> None:
        if is_view and isinstance(node.outputs[0], relax.DataflowVar) and _may_be_reshaped(node.outputs[0]):
            self._view(view, node)
            return
        self.visit_binding(view.bindings[node])
        for out in node.outputs:  # the results of a call with several keep the program's names
            if isinstance(out, tuple) and out in view.item:
                item = relax.TupleGetItem(self.visit_expr(out[0]), out[1])
                rebound(self, view.item[out], self.builder_.normalize(item))

    def _view(self, view: BlockView, node: Node) -> None:
        """Emit a reshape that stays outside every kernel. The runtime makes a view of it, fused before or not."""
        var: Any = node.outputs[0]
        source = self.visit_expr(view.named(node.inputs[0]))
        # Extents are compared as written, because TVM's fusion takes 3 * n and n * 3 for two extents.
        if compat.structural_equal(var.ty.shape, source.ty.shape):
            is_var = isinstance(source, relax.Var)  # no constant
            self.set_var_remap(var, source if is_var else self.builder_.emit(source, var.name))
            return
        reshape = self.builder_.normalize(relax.op.reshape(source, var.ty.shape))
        self.set_var_remap(var, self.builder_.emit(reshape, var.name))

    def _outline(
        self, view: BlockView, nodes: list[Node], inputs: list[Value], outputs: list[Value], stitch: bool
    ) -> Any:
        func, extra = _function(view, {node: self._called(view, node) for node in nodes}, inputs, outputs)
        prefix = "stitch" if stitch else "fused"
        func = func.with_attr("Primitive", True)
        if stitch:
            func = func.with_attr(STITCH_ATTR, True)
        gvar = self.builder_.add_func(relax.utils.copy_with_new_vars(func), _name(prefix, nodes))
        args = [self.visit_expr(view.named(v)) for v in inputs] + extra
        # TVM would infer n * 7 for 7 * n, and its fusion matches extents as they are written.
        call = self.builder_.normalize(_typed(relax.Call(gvar, args), func.ret_ty))
        if len(outputs) == 1:
            self._define(view, outputs[0], call)
            return gvar
        result = self.builder_.emit(call)
        for i, value in enumerate(outputs):
            self._define(view, value, relax.TupleGetItem(result, i))
        return gvar

    def _called(self, view: BlockView, node: Node) -> Any:
        """Return the PrimFunc that a node calls, without the parameters that numbers replace."""
        gvar, numbers = view.bindings[node].value.args[0], view.numbers[node]
        if not numbers:
            return gvar
        func = self.reader.mod[gvar]
        buffers = [buffer for _, buffer in compat.prim_func_params(func) if buffer is not None]
        called = with_numbers(func, {buffers[i]: number for i, number in numbers.items()})
        return self.builder_.add_func(called, node.name)

    def _define(self, view: BlockView, value: Value, expr: Any) -> None:
        var, normalized = view.named(value), self.builder_.normalize(expr)
        if isinstance(var, tuple):  # a result of a call with several that the program never names
            self.builder_.emit(normalized)
        else:
            rebound(self, var, normalized)


def _may_be_reshaped(var: relax.Var) -> bool:
    """Return True if no extent is 0. In Relax's ``reshape`` an extent of 0 means the input's extent there."""
    return all(compat.int_value(extent) != 0 for extent in var.ty.shape)


def _name(prefix: str, nodes: list[Node]) -> str:
    """Return a kernel's name, made of its operators in order.

    Casts from float to float are left out: they only say which dtypes the kernel reads and writes.
    """
    named = [n for n in nodes if not n.is_float_cast] or nodes
    names = [n.name.removeprefix("tir_") for n in named]
    shown = names if len(names) <= 5 else names[:3] + [f"x{len(names) - 4}", names[-1]]
    return "_".join([prefix, *shown])


def _function(
    view: BlockView, called: dict[Node, Any], inputs: list[Value], outputs: list[Value]
) -> tuple[relax.Function, list[Any]]:
    """Return the outlined function, and the shape argument that passes symbols no tensor argument carries."""
    names: dict[Value, Any] = {}
    params = []
    for i, value in enumerate(inputs):
        source = view.named(value)
        hint = getattr(source, "name", None) or f"const{i}"
        param = relax.Var(str(hint), source.ty)
        names[value] = param
        params.append(param)
    bindings: list[Any] = []
    for node, gvar in called.items():
        old = view.bindings[node]
        of, var = old.value, old.var  # each attribute is a call of TVM
        name, ty = var.name, var.ty
        fields = relax.Tuple([*(names[v] for v in node.inputs), *call_args(of)[1]])
        call = _typed(relax.Call(of.op, [gvar, fields, *of.args[2:]], of.attrs, of.ty_args), of.ty)
        if not isinstance(node.outputs[0], tuple):
            names[node.outputs[0]] = _bind(bindings, call, name, ty, node.outputs[0] in outputs)
            continue
        result = _bind(bindings, call, name, ty, False)
        for k, value in enumerate(node.outputs):
            item = _typed(relax.TupleGetItem(result, k), ty.fields[k])
            names[value] = _bind(bindings, item, f"{name}_{k}", item.ty, value in outputs)
    results = [names[v] for v in outputs]
    body: Any = results[0] if len(results) == 1 else relax.Tuple(results)
    ret_ty = results[0].ty if len(results) == 1 else relax.TupleType([r.ty for r in results])
    seq = _typed(relax.SeqExpr([relax.DataflowBlock(bindings)], body), ret_ty)
    func = relax.Function(params, seq, ret_ty)
    free = list(relax.analysis.free_symbolic_vars(func))
    if free:
        shape = relax.ShapeExpr(free)
        func = relax.Function([*params, relax.Var("shape", relax.ShapeType(free))], seq, ret_ty)
        return func, [shape]
    return func, []


def _bind(bindings: list[Any], value: Any, hint: str, ty: Any, output: bool) -> Any:
    var = (relax.Var if output else relax.DataflowVar)(hint, ty)
    bindings.append(relax.VarBinding(var, value))
    return var


def _typed(expr: Any, ty: Any) -> Any:
    """Return the expression with its type filled in (the type that normalization would infer)."""
    if expr.ty.is_missing():
        relax.expr._update_type(expr, ty)
    return expr
