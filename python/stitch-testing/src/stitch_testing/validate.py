# SPDX-License-Identifier: Apache-2.0
"""Check a StitchGraph's invariants. Tests run this check after every stage that makes or changes a graph."""

from __future__ import annotations

from tvm_stitch import compat
from tvm_stitch.graph.access import loads
from tvm_stitch.graph.extent import same
from tvm_stitch.graph.ir import Operator, StitchGraph, Tensor


class InvalidGraph(ValueError):
    """A StitchGraph that breaks an invariant. The message names the operator."""


def validate(graph: StitchGraph) -> None:
    """Check order, wiring, shapes and index maps.

    Raises:
        InvalidGraph: at the first broken invariant.
    """
    known: set[Tensor] = set(graph.inputs)
    for t in graph.inputs:
        _require(t.producer is None, f"input {t.name} has a producer")
    for op in graph.operators:
        _operator(op, known)
        _require(op.output not in known, f"{op.output.name} is made twice")
        known.add(op.output)
    for t in graph.outputs:
        _require(
            t in known and t.producer is not None, f"output {t.name} is not made by an operator of the graph"
        )
    _require(len(set(graph.outputs)) == len(graph.outputs), "an output is returned twice")


def _operator(op: Operator, known: set[Tensor]) -> None:
    _require(op.output.producer is op, f"{op.name}: its output names another producer")
    _require(len(op.spatial) >= len(op.output.shape), f"{op.name}: fewer spatial axes than output dimensions")
    for axis, extent in zip(op.spatial, op.output.shape):
        _require(
            same(axis.extent, extent), f"{op.name}: axis extent {axis.extent} for a dimension of {extent}"
        )
    _require(bool(op.reduce) <= op.is_reduce, f"{op.name}: reduced axes without a combiner")
    _require(op.is_reduce == (op.identity is not None), f"{op.name}: combiner and identity go together")
    read = list(loads(op.value))
    _require(len(read) == len(op.accesses), f"{op.name}: {len(read)} loads but {len(op.accesses)} accesses")
    axes = {a.var for a in op.axes}
    for (load, guarded), access in zip(read, op.accesses):
        _require(access.tensor in known, f"{op.name} reads {access.tensor.name} before it is made")
        _require(op in access.tensor.consumers, f"{op.name} is no consumer of {access.tensor.name}")
        _require(guarded == access.guarded, f"{op.name}: the guard of a read of {access.tensor.name} is lost")
        _require(
            len(access.indices) == len(access.tensor.shape),
            f"{op.name}: rank of a read of {access.tensor.name}",
        )
        _require(
            op.operand.get(compat.load_buffer(load)) is access.tensor,
            f"{op.name}: a load reads another tensor",
        )
        for index in access.indices:
            loose = {v for v in compat.free_vars(index) if v not in axes and v not in _symbols(op)}
            _require(not loose, f"{op.name}: index {index} mentions {', '.join(map(str, loose))}")


def _symbols(op: Operator) -> set[compat.Var]:
    """Return the symbols that an operator may mention."""
    symbols: set[compat.Var] = set()
    for t in [op.output, *op.inputs]:
        for extent in t.shape:
            if not isinstance(extent, int):
                symbols |= compat.free_vars(extent)
    return symbols


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidGraph(message)
