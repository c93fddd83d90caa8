# SPDX-License-Identifier: Apache-2.0
"""Takes without a check of their indices, legalized to TVM's own function without its warning.

Importers take embeddings and gathers in the mode ``"fast"``, which does not check indices.

Fault: TVM's legalization calls a TOPI function that prints a warning at every such take. The model's author can do
    nothing about it, and the importer has made negative indices positive.
Seen in: TVM 0.27.0
Input: ``R.take(x, indices, axis=0, mode="fast")``
Upstream: none known
"""

from __future__ import annotations

import tvm
from tvm import relax, te
from tvm.topi import tag

from ...relax.rewriting.calls import with_calls
from ...support.module_pass import module_pass

TAKE = "relax.take"


def _take(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if not _is_unchecked(call):
        return call.op.get_attr("FLegalize")(builder, call)
    return builder.call_te(taken, *call.args, int(call.attrs.axis), primfunc_name_hint="take")


TAKES = {TAKE: _take}
"""Legalizations for ``LegalizeOps``."""


def taken(data: te.Tensor, indices: te.Tensor, axis: int) -> te.Tensor:
    """Return the elements of a tensor at indices along an axis. Indices are not checked."""
    axis %= len(data.shape)
    end = axis + len(indices.shape)
    return te.compute(
        [*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]],
        lambda *i: data(*i[:axis], indices(*i[axis:end]), *i[end:]),
        name="T_take",
        tag=tag.INJECTIVE,
    )


def _is_unchecked(call: relax.Call) -> bool:
    """Return True for a take along an axis of tensors of known shape, in the mode ``"fast"``."""
    shaped = all(isinstance(arg.ty, relax.TensorType) and arg.ty.shape is not None for arg in call.args)
    return shaped and str(call.attrs.mode) == "fast" and call.attrs.axis is not None


@module_pass
class LegalizeTakes:
    """Legalize the takes that TVM would warn of, and nothing else. TVM's own pipelines run after it."""

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        return with_calls(
            mod,
            TAKES,
            lambda builder, call: _take(builder, call) if _is_unchecked(call) else call,
            why="TVM's legalization prints a warning",
        )


def stock_pipeline(target: tvm.target.Target | str) -> tvm.transform.Pass:
    """Return TVM's default pipeline for a target, without its warnings about takes."""
    return tvm.transform.Sequential([LegalizeTakes(), relax.get_default_pipeline(tvm.target.Target(target))])
