# SPDX-License-Identifier: Apache-2.0
"""The calls of a module that compute products of few rows, which scopes are to take."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import relax, tirx

from ...config import StitchConfig
from ...device import DeviceModel
from ...graph.ir import OpClass, StitchGraph
from ..stitch.dataflow import call_args, is_call_tir
from .sums import FewRows, few_rows
from .weights import Graphs, Weights


@dataclass(frozen=True, eq=False)
class ProductCall:
    """A call of a product of few rows.

    Attributes:
        function: the product's function.
        graph: the graph of the function.
        product: the product in the graph.
        args: the operands of the call.
        position: the position of the weight among them.
        operands: the operands, with the tensor that the weight permutes in the weight's place.
        turning: the function that permutes the weight, or None if the model does not permute it.
        order: for each axis of the tensor in memory, the axis of the weight.
        turned: whether the weight is a constant that is to be stored in that order.
    """

    function: tvm.ir.GlobalVar
    graph: StitchGraph
    product: FewRows
    args: tuple[relax.Expr, ...]
    position: int
    operands: tuple[relax.Expr, ...]
    turning: tvm.ir.GlobalVar | None
    order: tuple[int, ...]
    turned: bool = False


class ProductCalls:
    """Finds the products of few rows among the calls of a module."""

    def __init__(self, mod: tvm.IRModule, device: DeviceModel, config: StitchConfig):
        self.device, self.config, self.graphs = device, config, Graphs(mod)

    def weights(self, func: relax.Function) -> Weights:
        """Return the answers about the weights of a function of the module."""
        return Weights(self.graphs, func, self.device, self.config)

    def found(self, value: relax.Expr, weights: Weights) -> ProductCall | None:
        """Return what a call computes if a scope is to take it, or None for other values."""
        if not is_call_tir(value) or len(value.args) > 2:
            return None
        args, scalars = call_args(value)
        graph = self._contraction(value.args[0]) if len(args) == 2 and not scalars else None
        if graph is None:
            return None
        for position in (1, 0):
            product = few_rows(graph, position, self.device.choices)
            if product is None:
                continue
            same = args[position], None, tuple(range(len(args[position].ty.shape)))
            stored, turning, order = self._permuted(args[position], weights) or same
            packed = self._is_packed(args[1 - position], stored)
            along = product.is_along(order)
            turned = not along and turning is None and weights.is_turned(stored)
            if turned:
                order = product.order_along()
            if weights.serves(product.row_count, product.depth, args[position], along or turned, packed):
                operands = tuple(stored if i == position else arg for i, arg in enumerate(args))
                return ProductCall(
                    value.args[0], graph, product, tuple(args), position, operands, turning, order, turned
                )
        return None

    def _is_packed(self, *operands: relax.Expr) -> bool:
        """Return whether a template packs one of the operands, a constant, when it is compiled."""
        return not self.device.is_gpu and any(isinstance(each, tvm.ir.GenericConst) for each in operands)

    def _contraction(self, gvar: tvm.ir.GlobalVar) -> StitchGraph | None:
        """Return the graph of a function of one contraction, or None for another function."""
        graph = self.graphs.of(gvar)
        alone = graph is not None and len(graph.operators) == 1 and graph.operators[0].contraction
        return graph if alone else None

    def _permuted(
        self, weight: relax.Expr, weights: Weights
    ) -> tuple[relax.Expr, tvm.ir.GlobalVar, tuple[int, ...]] | None:
        """Return the tensor that a weight permutes, the function, and the weight's axis for each of its axes."""
        call = weights.values.get(weight) if isinstance(weight, relax.Var) else None
        if call is None or not is_call_tir(call) or len(call.args) > 2:
            return None
        args, scalars = call_args(call)
        graph = self.graphs.of(call.args[0])
        if graph is None or len(args) != 1 or scalars or len(graph.operators) != 1:
            return None
        (op,) = graph.operators
        positions = {axis.var: i for i, axis in enumerate(op.spatial)}
        if op.op_class is not OpClass.MOVE or len(op.accesses) != 1 or op.accesses[0].guarded:
            return None
        order = tuple(positions.get(i, -1) for i in op.accesses[0].indices)
        return (args[0], call.args[0], order) if sorted(order) == list(range(len(op.spatial))) else None


def private_like(func: tirx.PrimFunc, product: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function of TE as a private one, with the pattern that TVM fuses a product's function by."""
    func = func.without_attr("global_symbol")
    pattern = (product.attrs or {}).get("op_pattern")
    return func if pattern is None else func.with_attr("op_pattern", pattern)
