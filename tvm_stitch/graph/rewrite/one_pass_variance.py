# SPDX-License-Identifier: Apache-2.0
"""Mean and sum of squared deviations in one pass over the data instead of two.

A variance is written as two consecutive reductions, ``s = sum(f)`` and ``q = sum((f - s/n)^2)``. Data that does not
fit on chip is therefore read twice before it can be normalised. With a shift ``k`` near the mean, both sums become
independent::

    k = mean of J of f's own elements        S = sum(f - k)        Q = sum((f - k)^2)
    s/n = k + S/n                            q = Q - S*S/n

``k + S/n`` may lie outside half to twice k, as behind an outlier or an infinite element. Then s comes from a third sum
of the same pass, that of f itself. Its error is the same as without the rewrite.

**Error.** Let mu and sigma^2 be the exact mean and variance, and u the unit roundoff. Let g u be the relative error
of summing n positive terms. In trees g is about log n, one by one it is at most n. We have Q = q + n (mu-k)^2, and
S*S/n is the second term. Rounding therefore changes q by at most about ``g u (q + 2 n (mu-k)^2)``. Relative to
``q = n sigma^2`` this is::

    g u (1 + 2 (mu-k)^2 / sigma^2)

Unshifted (k = 0) this is unbounded: data of mean 1e4 and deviation 1e-2 keeps no digit in float32. But k is a mean
of the data's elements, ``k - mu = sum over samples of (f_j - mu) / J``. Suppose that m of the J samples hold the
deviation. The Cauchy-Schwarz inequality gives ``(k-mu)^2 <= m/J^2 * sum (f_j - mu)^2 <= m n sigma^2 / J^2``. The
relative error is therefore at most about

* ``g u (1 + 2/J)`` for samples that are like the rest,
* ``g u (1 + 2 n/J^2)`` if one sample is an outlier larger than everything else together,
* ``g u (1 + 2 n/J)`` at the very worst: all J samples deviate, and nothing else does.

The shift is computed as ``f_0 + sum((f_j - f_0)/J)``, in which no partial sum grows too large. Equal elements give
k = f_0 exactly, S = Q = 0 and a variance of exactly 0. Rounding may make the difference negative, so it is clamped
at 0. NaN and infinity stay as they are.

Half types: the new tensors have f's dtype. Like all values of a stitch op they are held in
:func:`~tvm_stitch.graph.dtype.compute_dtype`. Only k may be rounded to a half type, and any k is correct if all
sums use the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ... import compat
from ...compat import Analyzer, Buffer, Expr, Var, tir
from ..extent import is_number, product, same, unflatten
from ..ir import Axis, Operator, StitchGraph, Tensor
from .build import assemble, fresh_axes, make_operator, new_tensor
from .terms import Inexpressible, Leaves, Terms, widens

SAMPLES = 32
"""Number of elements that the shift averages (J): one row of a warp's lanes."""


@dataclass(frozen=True)
class Moments:
    """Two reductions over the same ``count`` elements: ``total`` = sum(f), ``squares`` = sum((f - total/count)^2).

    ``where`` holds the indices of ``total``'s result over the axes of ``squares``.
    """

    total: Operator
    squares: Operator
    count: int
    where: tuple[Expr, ...]


def candidates(graph: StitchGraph) -> list[Moments]:
    """Return the pairs of reductions that :func:`with_one_pass_variance` can make independent, in order.

    The rewrite pays if the second reduction reads the elements from memory again. For a row that stays on chip it
    only adds a barrier for the shift.
    """
    pairs: list[Moments] = []
    squares: set[Operator] = set()
    leaves = Leaves(graph)
    for op in graph.reduces:
        pair = _match(op) if leaves.may_be_square(op) else None
        if pair is not None and pair.total not in squares:
            pairs.append(pair)
            squares.add(op)
    totals = {pair.total for pair in pairs}
    return [pair for pair in pairs if pair.squares not in totals]


def with_one_pass_variance(graph: StitchGraph, pairs: Sequence[Moments] | None = None) -> StitchGraph:
    """Return the graph with ``pairs`` computed in one pass.

    ``graph`` is not changed. It is returned itself if there is nothing to rewrite.

    Args:
        graph: the graph.
        pairs: a selection of :func:`candidates` of this graph. None means all of them.
    """
    pairs = candidates(graph) if pairs is None else pairs
    return _Rewriter(graph, pairs).run() if pairs else graph


def _match(squares: Operator) -> Moments | None:
    dtype = squares.output.dtype
    if squares.combiner != "sum" or not dtype.startswith(("float", "bfloat")):
        return None
    terms = Terms(squares.axes)
    try:
        root = _root_of_square(terms, terms.value(squares, terms.var))
        if root is None:
            return None
        a, b = terms.nodes[root].args
        return _deviation(terms, squares, a, b) or _deviation(terms, squares, b, a)
    except (Inexpressible, RecursionError):  # RecursionError: for chains of hundreds of operators
        return None


def _root_of_square(terms: Terms, term: int) -> int | None:
    """Return the difference whose square a term is, or None."""
    node = terms.nodes[term]
    if node.head[0] == "Mul" and node.args[0] == node.args[1]:
        root = node.args[0]
    elif node.head[0] == "Call" and node.head[-1] == "pow" and terms.constant(node.args[1]) == 2:
        root = node.args[0]
    else:
        return None
    return root if terms.is_kind(root, "Sub") else None


def _deviation(terms: Terms, squares: Operator, element: int, mean: int) -> Moments | None:
    """Return the pair if ``mean`` is the mean of ``element`` over the axes that ``squares`` reduces, else None."""
    scaled = terms.scaled(mean)
    total = scaled[0].tensor.producer if scaled is not None and scaled[0].tensor is not None else None
    if scaled is None or total is None or total.combiner != "sum":
        return None
    if total.output.dtype != squares.output.dtype:
        return None
    count = product(a.extent for a in total.reduce)
    if not isinstance(count, int) or not _is_reciprocal(scaled[1], count, total.output.dtype):
        return None
    where = scaled[0].indices
    values = _map_axes(terms, total, squares, where)
    if values is None or terms.value(total, values) != element:
        return None
    back = {
        v: a.var for a in squares.axes for v in [terms.var[a.var]] if compat.kind(v) in ("Var", "SizeVar")
    }
    return Moments(total, squares, count, tuple(compat.substitute(i, back) for i in where))


def _is_reciprocal(factor: float, count: int, dtype: str) -> bool:
    """Return whether a factor is 1/count, up to the rounding of constants of the dtype."""
    digits = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}.get(dtype, 53)
    means = (1 / count, 1 / _rounded(count, digits), _rounded(1 / count, digits))
    return any(abs(factor / m - 1) <= 2.0**-50 for m in means)


def _rounded(value: float, digits: int) -> float:
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(math.ldexp(mantissa, digits)), exponent - digits)


def _map_axes(
    terms: Terms, total: Operator, squares: Operator, where: Sequence[Expr]
) -> dict[Var, Expr] | None:
    """Return the value of each axis of ``total`` at the axes of ``squares``, if both results cover the same index
    space.
    """
    values: dict[Var, Expr] = {a.var: compat.const(0, "int64") for a in total.axes}
    left: dict[Expr, Axis] = {terms.var[a.var]: a for a in _live(squares.spatial)}
    for axis, index in zip(total.spatial, where):
        if is_number(axis.extent, 1):
            continue
        if compat.kind(index) not in ("Var", "SizeVar") or index not in left:
            return None
        if not same(left.pop(index).extent, axis.extent, terms.analyzer):
            return None
        values[axis.var] = index
    mine, other = _live(total.reduce), _live(squares.reduce)
    if left or [a.extent for a in mine] != [a.extent for a in other]:
        return None
    values.update({a.var: terms.var[b.var] for a, b in zip(mine, other)})
    return values


def _live(axes: Sequence[Axis]) -> list[Axis]:
    return [a for a in axes if not is_number(a.extent, 1)]


@dataclass
class _Shifted:
    """The tensors that replace a pair's results. All have the shape of ``total``'s result."""

    count: int
    shift: Tensor
    sum: Tensor
    squares: Tensor
    plain: Tensor
    mean: Tensor

    def exact_mean(self, where: Sequence[Expr]) -> Expr:
        """Return the mean: from the shifted sum if that is near the shift, else from the plain sum."""
        shift, mean = _at(self.shift, where), self._shifted_mean(where)
        return tir.Select(self._is_near(mean, shift), mean, _at(self.plain, where) / self._count)

    def total(self, where: Sequence[Expr]) -> Expr:
        shift, plain = _at(self.shift, where), _at(self.plain, where)
        shifted = shift * self._count + _at(self.sum, where)
        return tir.Select(self._is_near(self._shifted_mean(where), shift), shifted, plain)

    def _shifted_mean(self, where: Sequence[Expr]) -> Expr:
        return _at(self.shift, where) + _at(self.sum, where) / self._count

    def _is_near(self, mean: Expr, shift: Expr) -> Expr:
        """Return the condition that a mean is between half and twice the shift.

        Such a mean neither lost digits nor overflowed on the way.
        """
        zero, half, two = (compat.const(v, self.sum.dtype) for v in (0.0, 0.5, 2.0))
        size, least = tir.Max(mean, zero - mean), tir.Max(shift, zero - shift) * half
        return tir.And(tir.LE(least, size), tir.LE(size * half, least * two))

    def rest(self, where: Sequence[Expr]) -> Expr:
        """Return Q - S*S/n, which is not negative up to rounding."""
        part = _at(self.sum, where)
        return _at(self.squares, where) - part * (part / self._count)

    def clamped(self, rest: Expr, where: Sequence[Expr]) -> Expr:
        """Return ``rest``, but at least 0. An infinite Q (equal to its double) stays infinite, and NaN stays NaN."""
        whole, zero = _at(self.squares, where), compat.const(0.0, self.squares.dtype)
        return tir.Select(tir.EQ(whole, whole + whole), whole, tir.Select(tir.LT(rest, zero), zero, rest))

    @property
    def _count(self) -> Expr:
        return compat.const(float(self.count), self.sum.dtype)

    @property
    def operand(self) -> dict[Buffer, Tensor]:
        return {t.buffer: t for t in (self.shift, self.sum, self.squares, self.plain, self.mean)}


class _Rewriter:
    def __init__(self, graph: StitchGraph, pairs: Sequence[Moments]):
        self.graph = graph
        self.pairs = {p.squares: p for p in pairs}
        self.totals = {p.total: p.count for p in pairs}
        self.shifted: dict[Tensor, _Shifted] = {}
        self.operators: list[Operator] = []

    def run(self) -> StitchGraph:
        # Tensors of the old graph serve as keys only: ``assemble`` creates all tensors anew.
        for op in self.graph.operators:
            if op in self.totals:
                self._total(op, self.totals[op])
            elif op in self.pairs:
                self._squares(op, self.pairs[op])
            else:
                value, operand = self._with_means(op)
                if value is not op.value:
                    self._add(op.name, op.output, op.spatial, op.reduce, value, operand, op)
                else:
                    self.operators.append(op)
        return assemble(self.graph, self.operators)

    def _total(self, op: Operator, count: int) -> None:
        """Append the shift, the three sums, the mean and the old sum. The old sum is dropped again if nothing needs
        it.
        """
        element_of, operand = self._with_means(op)
        zero, used = compat.const(0, "int64"), min(SAMPLES, count)
        first = {a.var: zero for a in op.reduce}
        name, shape, dtype = op.output.name, op.output.shape, op.output.dtype

        def element(names: dict[Var, Expr], position: dict[Var, Expr]) -> Expr:
            return compat.substitute(element_of, {**names, **position})

        shift = new_tensor(f"{name}_shift", shape, dtype)
        spatial, names = fresh_axes(op.spatial)
        middle = element(names, first)
        known = dict(operand)
        if used > 1:
            # The last sample is near the last element, and the stride rarely divides n. Data that repeats with an
            # inner extent is therefore sampled at different positions of its period.
            stride = compat.const((count - 1) // (used - 1), "int64")
            sampled = new_tensor(f"{name}_samples", shape, dtype)
            inner, inner_names = fresh_axes(op.spatial)
            sample = Axis(tir.Var("sample", "int64"), used)
            analyzer = Analyzer()
            compat.bind_range(analyzer, sample.var, compat.const(used, "int64"))
            position = [
                analyzer.simplify(i) for i in unflatten(sample.var * stride, [a.extent for a in op.reduce])
            ]
            difference = element(inner_names, {a.var: i for a, i in zip(op.reduce, position)}) - element(
                inner_names, first
            )
            part = difference / compat.const(float(used), dtype)
            self._add(f"{op.name}_samples", sampled, inner, [sample], part, known, op)
            known[sampled.buffer] = sampled
            middle = middle + _at(sampled, [a.var for a in spatial])
        self._add(f"{op.name}_shift", shift, spatial, [], middle, known)
        parts = ("shifted", "squares", "plain", "mean")
        sums = _Shifted(count, shift, *[new_tensor(f"{name}_{part}", shape, dtype) for part in parts])
        known = {**operand, shift.buffer: shift}
        for tensor in (sums.sum, sums.squares, sums.plain):
            spatial, names = fresh_axes(op.spatial)
            reduce, more = fresh_axes(op.reduce)
            plain, middle = element(names, more), _at(shift, [a.var for a in spatial])
            value = plain - middle
            if tensor is sums.squares:
                value = value * value
            elif tensor is sums.plain:
                # Always f itself: naming the shift keeps this sum in the pass of the others.
                value = tir.Select(tir.LT(middle, plain), plain, plain)
            self._add(tensor.name, tensor, spatial, reduce, value, known, op)
        spatial, _ = fresh_axes(op.spatial)
        self._add(
            sums.mean.name,
            sums.mean,
            spatial,
            [],
            sums.exact_mean([a.var for a in spatial]),
            sums.operand,
        )
        self.shifted[op.output] = sums
        self._add(op.name, op.output, op.spatial, [], sums.total([a.var for a in op.spatial]), sums.operand)

    def _add(
        self, name: str, output: Tensor, spatial: Sequence[Axis], reduce: Sequence[Axis], value: Expr,
        operand: dict[Buffer, Tensor], like: Operator | None = None,
    ) -> None:  # fmt: skip
        """Append an operator: a reduction that combines like ``like``, or an element-wise operator."""
        combiner, identity = (like.combiner, like.identity) if like is not None else (None, None)
        self.operators.append(
            make_operator(name, output, (spatial, reduce), value, operand, combiner, identity)
        )

    def _squares(self, op: Operator, pair: Moments) -> None:
        """Append the sum of squared deviations from the mean, computed from the deviations from the shift."""
        shifted, shape = self.shifted[pair.total.output], op.output.shape
        rest = new_tensor(f"{op.output.name}_rest", shape, op.output.dtype)
        spatial, names = fresh_axes(op.spatial)
        where = [compat.substitute(i, names) for i in pair.where]
        self._add(f"{op.name}_rest", rest, spatial, [], shifted.rest(where), shifted.operand)
        own = _at(rest, [a.var for a in op.spatial])
        operand = {**shifted.operand, rest.buffer: rest}
        self._add(op.name, op.output, op.spatial, [], shifted.clamped(own, pair.where), operand)

    def _with_means(self, op: Operator) -> tuple[Expr, dict[Buffer, Tensor]]:
        """Return the operator's value with every ``sum/n`` of a pair replaced, and the tensors that it then reads."""
        operand = dict(op.operand)

        def visit(e: Expr) -> Expr:
            scaled = _scaled(e)
            if scaled is not None:
                load, factor = scaled
                tensor = op.operand[compat.load_buffer(load)]
                shifted = self.shifted.get(tensor)
                if shifted is not None and _is_reciprocal(factor, shifted.count, tensor.dtype):
                    operand.update(shifted.operand)
                    mean = _at(shifted.mean, load.indices)
                    return mean if compat.dtype_of(e) == tensor.dtype else tir.Cast(compat.dtype_of(e), mean)
            return compat.rebuild(e, visit) if self._reads_total(op, e) else e

        return visit(op.value), operand

    def _reads_total(self, op: Operator, e: Expr) -> bool:
        read = (compat.load_buffer(part) for part in compat.parts(e) if compat.is_load(part))
        return any(op.operand[buffer] in self.shifted for buffer in read)


def _scaled(e: Expr) -> tuple[Expr, float] | None:
    """Return the load and the factor of a load that is multiplied or divided by a constant, else None."""
    if compat.kind(e) not in ("Mul", "Div"):
        return None
    a, b = e.a, e.b
    if compat.kind(e) == "Mul" and compat.kind(a) == "FloatImm":
        a, b = b, a
    while compat.kind(a) == "Cast" and widens(compat.dtype_of(a.value), compat.dtype_of(a)):
        a = a.value
    if compat.kind(b) != "FloatImm" or not compat.is_load(a) or float(b.value) == 0:
        return None
    return a, float(b.value) if compat.kind(e) == "Mul" else 1 / float(b.value)


def _at(tensor: Tensor, where: Sequence[Expr]) -> Expr:
    return compat.load(tensor.buffer, list(where)[: len(tensor.shape)])
