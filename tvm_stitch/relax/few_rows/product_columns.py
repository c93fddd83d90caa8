# SPDX-License-Identifier: Apache-2.0
"""ProductColumns: equal slices of a product of few rows become products of some of its columns."""

from __future__ import annotations

from collections.abc import Iterator

import tvm
from tvm import relax

from ... import compat
from ...compat import Expr, Var
from ...config import StitchConfig
from ...device import DeviceModel
from ...graph.ir import Operator
from ...support.module_pass import module_pass
from ..rewriting.functions import own_functions
from ..rewriting.readers import Readers, readers_of
from ..rewriting.rules import Match, Rule, apply_rules
from ..stitch.dataflow import is_call_tir
from .calls import ProductCall, ProductCalls, private_like
from .sums import columns_of

Columns = tuple[ProductCall, int, int]
"""A product, the first of its columns that are read, and their number."""


@module_pass
class ProductColumns:
    """Compute the columns of a product of few rows where slices of equal size read all of it.

    The gate and the other half of a feed-forward network are an example. As products of their own they have the same
    rows of weights in one kernel, which then multiplies them. Slices of one product lie in other rows: the kernel would
    need a barrier between the product and what reads it.
    """

    def __init__(self, device: DeviceModel, config: StitchConfig):
        self.device, self.config = device, config

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Rewrite the slices of products in each of the module's own functions."""
        calls = ProductCalls(mod, self.device, self.config)
        slices: dict[relax.Var, Columns] = {}
        for _, func in own_functions(mod):
            weights = calls.weights(func)
            readers: Readers | None = None
            for var, value in weights.values.items():
                product = calls.found(value, weights)
                if product is None:
                    continue
                readers = readers or readers_of(func)
                slices |= dict(_sliced(var, product, readers, calls))
        if not slices:
            return mod
        functions: dict[tuple[tvm.ir.GlobalVar, int, int], tvm.ir.GlobalVar] = {}

        def computed(match: Match) -> relax.Expr:
            product, start, count = slices[match.var]
            key = product.function, start, count
            if key not in functions:
                func = columns_of(product.product, product.graph, start, count)
                func = private_like(func, mod[product.function])
                functions[key] = match.builder.add_func(func, str(product.function.name_hint))
            args = relax.Tuple([match.now(arg) for arg in product.args])
            return relax.call_tir(functions[key], args, match.before.ty)

        rule = Rule("its columns are a product too", computed, variables=slices, leaves_unused=True)
        return apply_rules(mod, [rule])


def _sliced(
    var: relax.Var, product: ProductCall, readers: Readers, calls: ProductCalls
) -> Iterator[tuple[relax.Var, Columns]]:
    """Yield the variables that are equal slices of a product's columns, if nothing else reads the product."""
    parts: list[tuple[relax.Var, int, int]] = []
    for binding in readers.get(var, ()):
        if binding is None or not is_call_tir(binding.value):
            return
        graph = calls.graphs.of(binding.value.args[0])
        if graph is None or len(graph.inputs) != 1:
            return
        slices = [_slice(op, product) for op in graph.operators]
        if None in slices or len(slices) != len(graph.outputs):
            return
        if len(slices) == 1:
            names: list[relax.Var] = [binding.var]
        else:
            items = readers.get(binding.var, ())
            at = {
                int(b.value.index): b.var
                for b in items
                if b is not None and isinstance(b.value, relax.TupleGetItem)
            }
            if len(items) != len(at) or len(at) != len(slices):
                return
            names = [at[i] for i in range(len(slices))]
        parts += [(name, *part) for name, part in zip(names, slices, strict=True) if part is not None]
    if len(parts) > 1 and len({count for _, _, count in parts}) == 1:
        yield from ((name, (product, start, count)) for name, start, count in parts)


def _slice(op: Operator, product: ProductCall) -> tuple[int, int] | None:
    """Return the first column and the number of columns that an operator copies of a product, or None."""
    result = product.product.operator.output
    if op.is_reduce or len(op.spatial) != len(result.shape) or op.output.dtype != result.dtype:
        return None
    if not compat.is_load(op.value) or len(op.accesses) != 1 or op.accesses[0].guarded:
        return None
    column = product.product.column_position
    start = 0
    for i, (index, axis) in enumerate(zip(op.accesses[0].indices, op.spatial, strict=False)):
        if compat.same_var(index, axis.var) or (axis.extent == 1 and compat.int_value(index) == 0):
            continue
        offset = _offset(index, axis.var)
        if i != column or offset is None:
            return None
        start = offset
    same = all(
        i == column or axis.extent == extent for i, (axis, extent) in enumerate(zip(op.spatial, result.shape))
    )
    count = op.spatial[column].extent
    return (start, count) if same and isinstance(count, int) and count < int(result.shape[column]) else None


def _offset(index: Expr, var: Var) -> int | None:
    """Return the number that an index adds to a variable, or None if it is another expression."""
    if compat.kind(index) != "Add" or not compat.same_var(index.a, var):
        return None
    return compat.int_value(index.b)
