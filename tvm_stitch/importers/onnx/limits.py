# SPDX-License-Identifier: Apache-2.0
"""Bound the time and the memory of steps on an ONNX model, whose file may be of a stranger.

A few constants in a file of 100 bytes can stand for tensors of any size. ONNX's inference of shapes follows the
elements of such a tensor one by one, and importers compute it. Steps of other packages run in a child process with
limits. Tensors that depend on constants alone have a limit of bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import onnx

from ...support.child_process import ChildFailed, in_child
from ...support.memory import LIMIT, most_bytes, shown

SECONDS = 30
"""Seconds of computing time for a check of any model."""
SECONDS_PER_GIB = 60
"""More seconds for each GiB of a model."""
MEMORY = 1 << 30
"""Bytes of memory for a check of any model."""
COPIES = 6
"""Copies of a model that a check may keep in memory: checkers write the model to bytes and read it again."""


def within_limits(step: Callable[[], str | None], proto: onnx.ModelProto) -> str | None:
    """Return the result of a step on a model. The step runs in a child process.

    Args:
        step: takes nothing. It may read files and write files, but its other changes are lost.
        proto: the model. Limits grow with its bytes.

    Raises:
        ChildFailed: if the step takes too much time or memory, crashes or raises an exception.
    """
    size = proto.ByteSize()
    return in_child(step, SECONDS + SECONDS_PER_GIB * size // (1 << 30), MEMORY + COPIES * size)


def quick_reason(proto: onnx.ModelProto) -> str | None:
    """Return why the check of a model failed in its child process, if one of its constants is too large, or None.

    Shapes are inferred without the elements of tensors, which takes the time of the graph alone.
    """
    try:
        return within_limits(lambda: too_large_constant(onnx.shape_inference.infer_shapes(proto)), proto)
    except ChildFailed:
        return None


def too_large_constant(inferred: onnx.ModelProto) -> str | None:
    """Return the first tensor that a model computes from constants alone and that is too large, with advice, or None.

    Args:
        inferred: the model with inferred shapes.
    """
    graph, size = inferred.graph, inferred.ByteSize()
    most = most_bytes(size)
    constant = {tensor.name for tensor in graph.initializer} - {value.name for value in graph.input}
    types = {value.name: value.type.tensor_type for value in (*graph.value_info, *graph.output)}
    for number, node in enumerate(graph.node):
        if not all(name in constant for name in node.input if name):
            continue
        constant.update(node.output)
        if (needed := max(map(_bytes, _known(node.output, types)), default=0)) > most:
            return (
                f"node {number} ({node.op_type} {node.name!r}) makes a tensor of {shown(needed)} from constants, more "
                f"than {shown(most)}, the most for a model of {shown(size)}; if you trust the model, "
                f"set {LIMIT} to the bytes that it may take"
            )
    return None


def _known(names: Iterable[str], types: dict[str, onnx.TypeProto.Tensor]) -> list[onnx.TypeProto.Tensor]:
    return [types[name] for name in names if name in types]


def _bytes(of: onnx.TypeProto.Tensor) -> int:
    """Return the bytes of a tensor, with every unknown dimension counted as one."""
    try:
        item = onnx.helper.tensor_dtype_to_np_dtype(of.elem_type).itemsize
    except KeyError:
        item = 1
    return int(math.prod(max(1, dim.dim_value) for dim in of.shape.dim if dim.HasField("dim_value")) * item)
