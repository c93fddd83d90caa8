# SPDX-License-Identifier: Apache-2.0
"""Points at which values of the graph itself are gathered: the indices are read from integer inputs.

Element-wise operators can be evaluated anywhere, so also at an index that is loaded. The log-softmax of a row at the
row's label needs the logit there, and the row's maximum and sum.
"""

from __future__ import annotations

from ... import compat
from ...compat import Buffer, Expr, Var
from ...graph.ir import Access, Operator, Tensor
from ...support.failures import Refusal
from .domain import Domain, Point


class Misaligned(Refusal):
    """No in-block row domain serves the graph. The message says which operators disagree."""


class GatherPoints:
    """Makes the points, for one domain."""

    def __init__(self, domain: Domain):
        self.domain = domain
        self.stand_ins: dict[Tensor, Buffer] = {}
        """The buffers that points read for inputs that hold indices."""

    def point(self, op: Operator, point: Point, access: Access) -> Point:
        """Return the point that ``access`` of ``op`` gathers, when ``op`` is evaluated at ``point``.

        Raises:
            Misaligned: when an index depends on a reduction, or on floats.
        """
        values = self.domain.axis_values(op, point)
        indices = [_wide(self._resolve(op, i, values)) for i in access.indices]
        return self.domain.classify(access.tensor, indices, point)

    def _resolve(self, op: Operator, e: Expr, values: dict[Var, Expr]) -> Expr:
        """Return an integer expression of an operator at the given axes, over reads of inputs only."""
        if compat.kind(e) in ("Var", "SizeVar"):
            return values.get(e, e)
        if not compat.is_load(e):
            return compat.rebuild(e, lambda x: self._resolve(op, x, values))
        buffer = compat.load_buffer(e)
        tensor, indices = op.operand[buffer], [_wide(self._resolve(op, i, values)) for i in e.indices]
        if not tensor.dtype.startswith(("int", "uint", "bool")):
            raise Misaligned(f"{op.name} gathers at indices computed from {tensor!r}")
        producer = tensor.producer
        if producer is None:
            return compat.load(self._stand_in(tensor, buffer), indices)
        if producer.is_reduce:
            raise Misaligned(f"{op.name} gathers at indices that {producer.name} reduces to")
        inner: dict[Var, Expr] = {a.var: compat.const(0, "int64") for a in producer.axes}
        inner.update({a.var: i for a, i in zip(producer.spatial, indices)})
        return self._resolve(producer, producer.value, inner)

    def _stand_in(self, tensor: Tensor, buffer: Buffer) -> Buffer:
        """Return one buffer for each input, with a unique name: points are distinguished by their text.

        Operators that were read one by one have different buffers for one input, and the same names for all.
        """
        if tensor not in self.stand_ins:
            names, name = {str(b.name) for b in self.stand_ins.values()}, str(buffer.name)
            while name in names:
                name += "_"
            if name != str(buffer.name):
                buffer = compat.tir.decl_buffer(buffer.shape, compat.buffer_dtype(buffer), name)
            self.stand_ins[tensor] = buffer
        return self.stand_ins[tensor]


def _wide(index: Expr) -> Expr:
    """Return the index as int64."""
    return index if compat.dtype_of(index) == "int64" else compat.tir.Cast("int64", index)
