# SPDX-License-Identifier: Apache-2.0
"""A kernel around one compute-intensive operator: a matrix product or a convolution, and the operators behind it."""

from __future__ import annotations

from dataclasses import dataclass

from ..graph.dtype import BYTES, MULTIPLIED
from ..graph.extent import Extent, product
from ..graph.ir import Operator, StitchGraph, Tensor
from ..support.failures import Refusal
from .contraction import Contraction, contraction_of
from .convolution import Convolution, as_contraction, convolution_of


@dataclass(frozen=True)
class Anchored:
    """A kernel of one compute-intensive operator and the operators behind it, which read its result as an input.

    Attributes:
        product: the compute-intensive operator.
        epilogue: the graph of the other operators, or None if there are none.
        kind: the operator's kind as in options. A convolution of a 1x1 window counts as "convolution", although
            ``product`` is then a matrix product.
    """

    product: Contraction | Convolution
    epilogue: StitchGraph | None
    kind: str

    @property
    def weight(self) -> Tensor:
        """The right factor."""
        return self.product.weight if isinstance(self.product, Convolution) else self.product.right

    @property
    def data(self) -> Tensor:
        """The left factor, as stored in memory."""
        return self.product.data.source if isinstance(self.product, Convolution) else self.product.left

    @property
    def is_served(self) -> bool:
        """True if there is a template for its dtypes."""
        return are_served(self.data.dtype, self.weight.dtype, self.product.output.dtype)

    @property
    def dtypes(self) -> set[str]:
        """The dtypes of the factors and of the result."""
        return {t.dtype for t in (self.data, self.weight, self.product.output)}

    @property
    def takes_packed(self) -> bool:
        """True if the weight can be packed: its size is known, and only the product reads it, as a whole."""
        p = self.product
        if self.epilogue is not None and self.weight in self.epilogue.inputs:
            return False
        if isinstance(p, Convolution):
            return True
        return isinstance(p.columns, int) and isinstance(p.reduction, int) and p.has_weight

    @property
    def rows(self) -> Extent:
        """Rows of the result. Each has ``product.columns`` elements."""
        if isinstance(self.product, Convolution):
            return self.product.rows
        return product((self.product.batch, self.product.rows))


def are_served(data: str, weight: str, output: str) -> bool:
    """Return whether there is a template for factors and a result of these dtypes."""
    if output == "int32":
        return {data, weight} <= set(BYTES)
    return {data, weight, output} <= set(MULTIPLIED)


def anchored(graph: StitchGraph) -> Anchored:
    """Return a graph as one compute-intensive operator and its epilogue. The graph is taken apart.

    Raises:
        Refusal: if the graph has no such operator, several, or one whose operands it computes.
    """
    op = _anchor(graph)
    matmul, taken = _product_of(op)
    others = [o for o in graph.operators if o is not op and o not in taken]
    for operator in taken:
        readers = [o for o in graph.operators if operator.output in o.inputs]
        if operator.output in graph.outputs or any(o is not op and o not in taken for o in readers):
            raise Refusal(f"{operator.output.name} is read by others too")
    if not others:
        return Anchored(matmul, None, _kind_of(op))
    op.output.producer = None
    read = {tensor for o in others for tensor in o.inputs}
    inputs = [*(t for t in graph.inputs if t in read), op.output]
    outputs = [t for t in graph.outputs if t is not op.output]
    return Anchored(matmul, StitchGraph(graph.name, inputs, others, outputs, graph.symbols), _kind_of(op))


def anchor_of(graph: StitchGraph) -> Anchored:
    """Return the compute-intensive operator of a graph, without its epilogue. The graph is not changed.

    Raises:
        Refusal: if the graph has no such operator, several, or one whose operands it computes.
    """
    op = _anchor(graph)
    return Anchored(_product_of(op)[0], None, _kind_of(op))


def has_template(graph: StitchGraph, but: frozenset[str] = frozenset()) -> bool:
    """Return whether a template computes the compute-intensive operator of a graph.

    Operators of the kinds in ``but`` have no template.
    """
    try:
        anchor = anchor_of(graph)
        return anchor.is_served and anchor.kind not in but
    except Refusal:
        return False


def reads_permuted(graph: StitchGraph, but: frozenset[str] = frozenset()) -> bool:
    """Return whether one template computes all of a graph: a compute-intensive operator and permutations of its
    operands.

    Both operands of a matrix product may be permuted. The weight of a convolution may not, because it is packed as it
    is stored. Operators of the kinds in ``but`` have no template.
    """
    try:
        op = _anchor(graph)
        matmul, taken = _product_of(op)
    except Refusal:
        return False
    anchor = Anchored(matmul, None, _kind_of(op))
    return anchor.is_served and anchor.kind not in but and len(taken) + 1 == len(graph.operators)


def _anchor(graph: StitchGraph) -> Operator:
    """Return the only compute-intensive operator of a graph.

    Raises:
        Refusal: if there is none, or more than one.
    """
    contractions = [op for op in graph.operators if op.contraction]
    if len(contractions) != 1:
        raise Refusal(
            f"{len(contractions)} compute-intensive operators in one kernel, a template computes one"
        )
    return contractions[0]


def _product_of(op: Operator) -> tuple[Contraction | Convolution, list[Operator]]:
    """Return the product or convolution that an operator computes, and the operators that compute its operands."""
    if _kind_of(op) == "convolution":
        convolution, taken = convolution_of(op)
        return (as_contraction(convolution), taken) if convolution.is_pointwise else (convolution, taken)
    return contraction_of(op)


def _kind_of(op: Operator) -> str:
    return "convolution" if len(op.reduce) > 1 else "matmul"
