# SPDX-License-Identifier: Apache-2.0
"""Products of few rows, which wait for their weight: those that scopes take, and those that libraries keep.

A weight that is *narrow* is computed from a tensor of far fewer bytes, element by element: it is dequantized. The
kernel that multiplies reads the narrow tensor, and computes each element where it is needed. Written to memory first,
4-bit weights cost 4.6 bytes a parameter and token in place of 0.56. One row by 14,336 x 4,096 such weights, with a
norm, SiLU and a residual, took 112 us on an H200. In one kernel it takes 26 us.

Other weights are read at the memory's speed by libraries too. On a GPU a scope takes their products of a row or two.
It takes those of half types of up to sixteen rows, which matrix units multiply. So norms, activations and residuals are
computed in the same kernel. Constants are stored as such a kernel reads them. On a CPU a scope takes products of up to
eight rows by weights of half types, unless they are constants, which templates pack. Templates keep all products of
bfloat16 but those of one row if the CPU multiplies pairs of bfloat16.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import tvm
from tvm import relax

from ...config import StitchConfig
from ...device import DeviceModel
from ...graph.classify import is_heavy
from ...graph.dtype import HALF, item_bytes
from ...graph.extent import is_static
from ...graph.ir import StitchGraph
from ...graph.reader import Unreadable, read
from ..rewriting.operators import BROADCASTING, operator_name
from ..rewriting.views import bytes_of, permutation, shape_of

_MOVES = "permute_dims reshape expand_dims squeeze broadcast_to strided_slice repeat concat stack flatten"
_UNARY = "astype negative bitwise_not dequantize"
_BITS = "bitwise_and bitwise_or bitwise_xor left_shift right_shift"
FLOATS = ("float16", "bfloat16", "float32")

POINTWISE = BROADCASTING | {f"relax.{name}" for name in f"{_MOVES} {_UNARY} {_BITS}".split()} - {
    "relax.power"
}
"""Operators that a kernel evaluates at the element that it needs, at little cost."""


def dense_rows(device: DeviceModel, config: StitchConfig, dtype: str, depth: int) -> int:
    """Return the most rows of a product whose weight is not narrow, if a scope is to take it.

    Args:
        device: the device.
        config: the options.
        dtype: of the weight and of the rows.
        depth: the elements of a row.
    """
    choices = device.choices
    if config.compute_of("matmul") != "auto" or dtype not in (FLOATS if device.is_gpu else HALF):
        return 0
    if not device.is_gpu:
        of_pairs = dtype == "bfloat16" and device.multiplies_pairs
        return choices.cpu_dense_rows_of_pairs if of_pairs else choices.cpu_dense_rows
    if dtype not in HALF:
        return choices.few_float_rows
    if not device.matrix_units:
        return choices.few_dense_rows
    kept = int(choices.matrix_factor_share * device.shared_per_block) // max(1, depth * item_bytes(dtype))
    return max(choices.few_dense_rows, min(choices.matrix_rows, kept))


class Graphs:
    """The graphs of a module's functions. Each function is read once."""

    def __init__(self, mod: tvm.IRModule):
        self.mod = mod
        self._known: dict[relax.GlobalVar, StitchGraph | None] = {}

    def of(self, gvar: relax.GlobalVar) -> StitchGraph | None:
        """Return the graph of a function, or None if it is not readable."""
        if gvar not in self._known:
            try:
                self._known[gvar] = read(self.mod[gvar])
            except Unreadable:
                self._known[gvar] = None
        return self._known[gvar]


class Weights:
    """Answers questions about the products of a function, and about their weights.

    Args:
        graphs: of the functions that the function calls.
        func: a function of Relax, its operators legalized or not.
        device: the device that the kernels are for.
        config: options. A library that is asked for keeps the products of weights that are not narrow.
    """

    def __init__(self, graphs: Graphs, func: relax.Function, device: DeviceModel, config: StitchConfig):
        self.graphs, self.choices, self.device, self.config = graphs, device.choices, device, config
        self.turns_constants = device.is_gpu
        self.dense_bytes = 0 if device.is_gpu else device.choices.cpu_dense_bytes
        self.values: Mapping[relax.Var, relax.Expr] = relax.analysis.get_var2val(func)
        self._sources: dict[relax.Var, float] = {}

    def is_waited_for(self, call: relax.Call) -> bool:
        """Return whether an ``R.matmul`` of few rows waits for its right side, so that a scope is to take it."""
        left, right = map(shape_of, call.args[:2])
        if not left or not right or len(right) < 2 or not is_static([*left, *right[:-2]]):
            return False
        if math.prod(right[:-2]) != 1 or str(call.args[0].ty.dtype) != str(call.args[1].ty.dtype):
            return False
        weight = call.args[1]
        along = self._is_transposed(weight) or self.is_turned(weight)
        return self.serves(math.prod(left[:-1]), left[-1], weight, along)

    def is_turned(self, weight: relax.Expr) -> bool:
        """Return whether a weight is a constant that is stored with the elements of a sum next to each other."""
        return self.turns_constants and isinstance(weight, tvm.ir.GenericConst)

    def serves(self, rows: int, depth: int, weight: relax.Expr, along: bool, packed: bool = False) -> bool:
        """Return whether a scope is to take a product.

        Args:
            rows: the number of its rows.
            depth: the number of products that a sum adds up.
            weight: its weight.
            along: whether neighbouring elements of the weight in memory are added up.
            packed: whether a template would pack one of the operands.
        """
        most = dense_rows(self.device, self.config, str(weight.ty.dtype), depth)
        if along and not packed and rows <= most and bytes_of(weight) >= self.dense_bytes:
            return True
        return rows <= self.choices.few_rows and self.is_narrow(weight)

    def _is_transposed(self, value: relax.Expr) -> bool:
        """Return whether a weight is the transposition of a tensor in memory."""
        call = self.values.get(value) if isinstance(value, relax.Var) else None
        if call is None or operator_name(call) != "relax.permute_dims":
            return False
        rank = len(call.ty.shape)
        return permutation(call, rank) == [*range(rank - 2), rank - 1, rank - 2]

    def is_narrow(self, value: relax.Expr) -> bool:
        """Return whether a tensor is computed, element by element, from tensors of far fewer bytes."""
        if not isinstance(value, relax.Var) or value not in self.values:
            return False
        size = bytes_of(value)
        return self._read(value) <= self.choices.narrow_share * size < math.inf and self._has_integers(value)

    def _has_integers(self, value: relax.Expr) -> bool:
        """Return whether a tensor is computed from integers, or from floats of 8 bits. Others are only repeated."""
        call = self.values.get(value) if isinstance(value, relax.Var) else None
        if isinstance(call, relax.Var):
            return self._has_integers(call)
        if call is not None and self._is_pointwise(call):
            return any(map(self._has_integers, _tensors(call)))
        return str(value.ty.dtype).startswith(("int", "uint", "float8"))

    def _read(self, value: relax.Expr) -> float:
        """Return the bytes that a kernel reads to compute a tensor at its elements: its own if it is not computed."""
        own = bytes_of(value)
        if not isinstance(value, relax.Var) or value not in self.values:
            return own
        if value not in self._sources:
            self._sources[value] = own  # a value that is read on the way to itself would be no tensor
            call = self.values[value]
            if isinstance(call, relax.Var):
                self._sources[value] = self._read(call)
            elif self._is_pointwise(call):
                self._sources[value] = sum(map(self._read, _tensors(call)))
        return self._sources[value]

    def _is_pointwise(self, value: relax.Expr) -> bool:
        """Return whether a call computes one tensor element by element, at little cost."""
        name = operator_name(value)
        if name in POINTWISE:
            return True
        if name != "relax.call_tir" or not isinstance(value.ty, relax.TensorType):
            return False
        graph = self.graphs.of(value.args[0])
        if graph is None or len(graph.outputs) != 1:
            return False
        return not any(op.is_reduce or is_heavy(op.value) for op in graph.operators)


def _tensors(call: relax.Call) -> list[relax.Expr]:
    """Return the tensors that a call reads."""
    tensors: list[relax.Expr] = []
    for arg in call.args:
        tensors += list(arg.fields) if isinstance(arg, relax.Tuple) else [arg]
    return [arg for arg in tensors if isinstance(arg.ty, relax.TensorType)]
