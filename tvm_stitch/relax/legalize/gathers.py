# SPDX-License-Identifier: Apache-2.0
"""Gathers of slices by coordinates (``R.gather_nd``), legalized to one operator.

TVM's legalization transposes the coordinates first. One operator reads them as they are stored, so that kernels
recognise gathers of whole slices (``graph/gather.py``).
"""

from __future__ import annotations

import tvm
from tvm import relax, te
from tvm.topi import tag


def _gathered(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    data, indices = call.args
    if not _are_shaped(data, indices):
        return call.op.get_attr("FLegalize")(builder, call)
    return builder.call_te(
        gathered, data, indices, int(call.attrs.batch_dims), primfunc_name_hint="gather_nd"
    )


def _are_shaped(*args: relax.Expr) -> bool:
    """Return whether all shapes and the number of coordinates are known."""
    shapes = [getattr(arg.ty, "shape", None) for arg in args]
    known = [shape for shape in shapes if isinstance(shape, relax.ShapeExpr)]
    return len(known) == len(shapes) and isinstance(known[-1].values[-1], tvm.tirx.IntImm)


def gathered(data: te.Tensor, indices: te.Tensor, batch_dims: int) -> te.Tensor:
    """Return ``data[b..., *indices[b..., i..., :], j...]``. Coordinates are not checked.

    Args:
        data: a tensor.
        indices: integers. The last axis has the coordinates.
        batch_dims: the number of leading axes ``b`` that both have.
    """
    outer, count = len(indices.shape) - 1, int(indices.shape[-1])
    behind = data.shape[batch_dims + count :]

    def element(*i: tvm.tirx.Var) -> tvm.ir.Expr:
        coordinates = [indices(*i[:outer], at) for at in range(count)]
        return data(*i[:batch_dims], *coordinates, *i[outer:])

    return te.compute([*indices.shape[:-1], *behind], element, name="T_gather_nd", tag=tag.INJECTIVE)


GATHERS = {"relax.gather_nd": _gathered}
"""Legalizations for ``LegalizeOps``."""
