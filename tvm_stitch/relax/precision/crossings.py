# SPDX-License-Identifier: Apache-2.0
"""Round values that memory holds anyway to the half type, as in a model whose every operator is half.

In mixed precision, norms and sums of float32 give float32. A residual is such a value. Memory would hold it in
float32 for the addition after the next matmul, and in the half type for that matmul. A rounded residual is written
once. A pool reads each element for several windows, so a kernel stores what a norm in front of it computes.
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from ..rewriting.operators import PRODUCTS, operator_name
from ..rewriting.readers import Readers, readers_of

POOLS = frozenset(f"relax.nn.{kind}_pool{n}d" for kind in ("avg", "max") for n in (1, 2, 3))
"""Operators that read overlapping windows."""

_NAMES = (relax.Var, relax.Tuple, relax.TupleGetItem)
"""Expressions that are other names of values."""


def with_half_crossings(func: relax.Function, dtype: str) -> relax.Function:
    """Return the function with float32 values that are stored anyway rounded to a half type where they are computed.

    A value crosses a product if it depends on a product, and a later value reads it that depends on more products in
    a row. That reader must not be a product itself. Pools count as products here, and what they read is rounded too.
    Statistics, scores and other values that are read before the next product stay as they are. Results of the function
    stay too, and values that depend on no product: a mask may hold numbers that a half type does not.
    """
    return _Rounds(_crossing(func), dtype).visit_expr(func)


def _crossing(func: relax.Function) -> frozenset[relax.Var]:
    levels = _Levels()
    levels.visit_expr(func)
    readers = readers_of(func)
    crossing = []
    for var, level in levels.of.items():
        behind = [levels.behind(reader) for reader in readers.get(var, ())]
        is_stored = max(behind, default=0) > level or _is_pooled(var, readers)
        if var in levels.made and is_stored and not _is_result(var, readers):
            crossing.append(var)
    return frozenset(crossing)


def _is_pooled(var: relax.Var, readers: Readers) -> bool:
    """Return True if a pool reads a value, as it is or under another name."""
    return any(
        reader is not None
        and (
            operator_name(reader.value) in POOLS
            or (isinstance(reader.value, _NAMES) and _is_pooled(reader.var, readers))
        )
        for reader in readers.get(var, ())
    )


def _is_result(var: relax.Var, readers: Readers) -> bool:
    """Return True if a value is a result of the function, directly, under another name, or in a tuple."""
    return any(
        reader is None or (isinstance(reader.value, _NAMES) and _is_result(reader.var, readers))
        for reader in readers.get(var, ())
    )


@relax.expr_functor.visitor
class _Levels(relax.PyExprVisitor):
    """For each variable, the greatest number of products and pools in a row that it depends on.

    ``made`` holds the variables that depend on a product.
    """

    def __init__(self) -> None:
        super().__init__()
        self.of: dict[Any, int] = {}
        self.made: set[Any] = set()
        self._seen, self._seen_product = 0, False

    def visit_var_binding_(self, binding: relax.Binding) -> None:
        outer, outer_product = self._seen, self._seen_product
        self._seen, self._seen_product = 0, False
        self.visit_expr(binding.value)
        name = operator_name(binding.value)
        self.of[binding.var] = self._seen + (name in PRODUCTS or name in POOLS)
        if self._seen_product or name in PRODUCTS:
            self.made.add(binding.var)
        self._seen, self._seen_product = max(outer, self._seen), outer_product or self._seen_product

    visit_match_cast_ = visit_var_binding_

    def visit_var_(self, var: relax.Var) -> None:
        self._seen = max(self._seen, self.of.get(var, 0))
        self._seen_product = self._seen_product or var in self.made

    visit_dataflow_var_ = visit_var_

    def visit_var_def_(self, var: relax.Var) -> None:
        """Ignore definitions, which are not uses."""

    def behind(self, reader: relax.Binding | None) -> int:
        """Return the level of a value's reader. It is 0 for products, which read half types anyway."""
        return 0 if reader is None or operator_name(reader.value) in PRODUCTS else self.of[reader.var]


@relax.expr_functor.mutator
class _Rounds(relax.PyExprMutator):
    def __init__(self, crossing: frozenset[relax.Var], dtype: str):
        super().__init__()
        self.crossing, self.dtype = crossing, dtype

    def visit_var_binding_(self, binding: relax.Binding) -> None:
        super().visit_var_binding_(binding)
        self._round(binding.var)

    def visit_match_cast_(self, binding: relax.MatchCast) -> None:
        super().visit_match_cast_(binding)
        self._round(binding.var)

    def _round(self, var: relax.Var) -> None:
        if var not in self.crossing or not isinstance(var.ty, relax.TensorType) or var.ty.dtype != "float32":
            return
        half = self.builder_.emit(relax.op.astype(self.visit_expr(var), self.dtype))
        wide = relax.op.astype(half, "float32")
        if self.builder_.current_block_is_dataflow() and not isinstance(var, relax.DataflowVar):
            self.set_var_remap(var, self.builder_.emit_output(wide))  # other blocks read it
        else:
            self.set_var_remap(var, self.builder_.emit(wide))
