# SPDX-License-Identifier: Apache-2.0
"""Readers of variables: each reading, in which binding, and results."""

from __future__ import annotations

from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build
from tvm_stitch.relax.rewriting.readers import readers_of


def test_every_reading_counts() -> None:
    func = build(
        lambda emit, x, y: [emit(R.add(x, x)), emit(R.exp(y))], ((4,), "float32"), ((4,), "float32")
    )["main"]
    found = readers_of(func)
    x, y = func.params
    assert [b.value.op.name for b in found[x]] == ["relax.add"] * 2
    assert [b.value.op.name for b in found[y]] == ["relax.exp"]


def test_results_have_a_reader_without_a_binding() -> None:
    func = build(lambda emit, x: R.exp(x), ((4,), "float32"))["main"]
    (binding,) = func.body.blocks[0].bindings
    assert readers_of(func)[binding.var] == [None]


def test_branches_are_read_as_well() -> None:
    builder = relax.BlockBuilder()
    x, c = relax.Var("x", relax.TensorType([4], "float32")), relax.Var("c", relax.TensorType([], "bool"))
    with builder.function("main", [x, c]):
        chosen = builder.emit(relax.If(c, builder.normalize(R.exp(x)), builder.normalize(R.negative(x))))
        builder.emit_func_output(chosen)
    found = readers_of(builder.get()["main"])
    assert len(found[x]) == 2 and len(found[c]) == 1
