# SPDX-License-Identifier: Apache-2.0
"""PyTorch's operators that divide an axis. TVM's importer takes sizes for numbers, and fails at symbolic ones."""

from __future__ import annotations

from typing import Any

from torch import fx
from tvm import relax
from tvm.relax import op as R

from ..core import Converter, argument
from ..importing.unsupported import Unsupported


def split_converters() -> dict[str, Converter]:
    """Return the converters of operators that divide an axis, by the names of PyTorch's operators."""
    return {"split.Tensor": _split, "split_with_sizes.default": _split}


def _split(node: Any, importer: Any) -> Any:
    """(input, size of each slice or sizes of all, axis=0) -> the slices, the last one of which may be smaller."""
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    axis = int(argument(node, 2, "dim", 0)) % len(x.ty.shape)
    ends: list[Any] = []
    for size in _sizes(node, importer, axis):
        ends.append(ends[-1] + size if ends else size)
    if all(isinstance(end, int) for end in ends):
        return emit(R.split(x, ends[:-1], axis)) if len(ends) > 1 else [x]
    return [
        emit(R.strided_slice(x, [axis], [begin], [end], assume_inbound=True))
        for begin, end in zip([0, *ends], ends)
    ]


def _sizes(node: Any, importer: Any, axis: int) -> list[Any]:
    """Return the size of each slice, an integer or a symbolic one."""
    given = argument(node, 1, "split_sizes", None)
    if not isinstance(given, (list, tuple)):  # PyTorch has computed the slices
        given = [value.shape[axis] for value in node.meta["val"]]
        if not all(isinstance(size, int) for size in given):
            raise Unsupported.at(
                node, "slices of one size along a symbolic axis; give the size of each slice"
            )
    sizes = [importer.env[size] if isinstance(size, fx.Node) else size for size in given]
    if any(isinstance(getattr(size, "ty", None), relax.TensorType) for size in sizes):
        raise Unsupported.at(node, "the size of a slice is a tensor; give an integer")
    return sizes
