# SPDX-License-Identifier: Apache-2.0
"""PyTorch's products, convolutions and batch norms in other types than float32 for TVM's importer.

The importer converts every product and convolution to float32, whatever its operands are. It then adds a bias in
the operands' type, which TVM rejects. So it imports no model of half types or float64. Here results of half types
are summed in float32, bias included, and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tvm import relax
from tvm.relax import op as R

from .core import Converter, argument, dtype_name

HALVES = ("float16", "bfloat16")
FORWARD = {1: R.nn.conv1d, 2: R.nn.conv2d, 3: R.nn.conv3d}
TRANSPOSED = {1: R.nn.conv1d_transpose, 2: R.nn.conv2d_transpose, 3: R.nn.conv3d_transpose}
LAYOUTS = {1: "W", 2: "HW", 3: "DHW"}
"""Convolutions and layouts by the number of axes along which the kernel moves."""
BATCH_NORMS = ("_native_batch_norm_legit_no_training.default", "batch_norm.default")


def product_converters() -> dict[str, Converter]:
    """Return the converters of products, by the names of PyTorch's operators."""
    return {
        **dict.fromkeys(("bmm.default", "matmul.default", "mm.default", "mv.default"), _product),
        **dict.fromkeys(("addmm.default", "addmv.default", "baddbmm.default"), _added_product),
        "convolution.default": _convolution,
        **dict.fromkeys(BATCH_NORMS, _batch_norm),
    }


def _type_of(node: Any) -> str:
    value = node.meta["val"]
    return dtype_name((value[0] if isinstance(value, Sequence) else value).dtype)


def _cast(x: Any, dtype: str, importer: Any) -> Any:
    return x if str(x.ty.dtype.dtype) == dtype else importer.block_builder.emit(R.astype(x, dtype))


def _summed(left: Any, right: Any, dtype: str, importer: Any) -> Any:
    """Return a product in the type in which products of ``dtype`` are summed."""
    wide = "float32" if dtype in HALVES else dtype
    return importer.block_builder.emit(R.matmul(left, right, out_dtype=wide))


def _product(node: Any, importer: Any) -> Any:
    """(left, right)."""
    left, right = (importer.env[arg] for arg in node.args[:2])
    dtype = _type_of(node)
    return _cast(_summed(left, right, dtype, importer), dtype, importer)


def _added_product(node: Any, importer: Any) -> Any:
    """(addend, left, right, beta=1, alpha=1) -> beta * addend + alpha * left @ right."""
    emit, dtype = importer.block_builder.emit, _type_of(node)
    addend, left, right = (importer.env[arg] for arg in node.args[:3])
    total = _summed(left, right, dtype, importer)
    wide = str(total.ty.dtype.dtype)
    beta, alpha = (argument(node, at, name, 1) for at, name in ((3, "beta"), (4, "alpha")))
    if alpha != 1:
        total = emit(R.multiply(relax.const(alpha, wide), total))
    if beta != 0:  # with beta 0 PyTorch ignores the addend, which may be NaN
        addend = _cast(addend, wide, importer)
        if beta != 1:
            addend = emit(R.multiply(relax.const(beta, wide), addend))
        total = emit(R.add(addend, total))
    return _cast(total, dtype, importer)


@contextmanager
def _in_float32(nodes: Sequence[Any], importer: Any) -> Iterator[None]:
    """Convert the importer's tensors of some nodes to float32 in this context."""
    before = {node: importer.env[node] for node in nodes if node is not None}
    importer.env.update({node: _cast(x, "float32", importer) for node, x in before.items()})
    try:
        yield
    finally:
        importer.env.update(before)


def _convolution(node: Any, importer: Any) -> Any:
    """(input, weight, bias=None, stride, padding, dilation, transposed, output padding, groups)."""
    x, weight = (importer.env[arg] for arg in node.args[:2])
    emit, dtype = importer.block_builder.emit, _type_of(node)
    axes = len(weight.ty.shape) - 2
    stride, padding, dilation, extra = (_for_each_axis(node.args[at], axes) for at in (3, 4, 5, 7))
    shape = list(node.meta["val"].shape)
    if 0 in shape:
        return emit(R.zeros(shape, dtype))
    sums = "float32" if dtype in HALVES else dtype
    how: dict[str, Any] = {
        "strides": stride,
        "padding": [*padding, *padding],
        "dilation": dilation,
        "groups": int(node.args[8]),
        "data_layout": "NC" + LAYOUTS[axes],
        "out_dtype": sums,
    }
    if not node.args[6]:
        result = emit(FORWARD[axes](x, weight, kernel_layout="OI" + LAYOUTS[axes], **how))
    else:
        result = _transposed(x, weight, extra, how, emit)
    if node.args[2] is not None:
        bias = _cast(importer.env[node.args[2]], sums, importer)
        result = emit(R.add(result, R.reshape(bias, [1, -1, *[1] * axes])))
    return _cast(result, dtype, importer)


def _transposed(
    x: Any, weight: Any, extra: Sequence[int], how: dict[str, Any], emit: Callable[[Any], Any]
) -> Any:
    """Return a transposed convolution without its bias.

    TVM takes no output padding of a stride or more. PyTorch takes one that is smaller than the dilation. Then rows are
    computed without padding, and cut off or added at both ends.
    """
    axes, padding = len(extra), how["padding"][: len(extra)]
    how = how | {"kernel_layout": "IO" + LAYOUTS[axes]}
    if all(more < step for more, step in zip(extra, how["strides"])):
        return emit(TRANSPOSED[axes](x, weight, output_padding=extra, **how))
    result = emit(TRANSPOSED[axes](x, weight, **how | {"padding": [0] * (2 * axes)}))
    for axis, (front, more) in enumerate(zip(padding, extra), 2):
        back = front - more
        end = result.ty.shape[axis] - max(back, 0)
        result = emit(R.strided_slice(result, [axis], [front], [end]))
        if back < 0:
            widths = [0] * (2 * (axes + 2))
            widths[2 * axis + 1] = -back
            result = emit(R.nn.pad(result, widths))
    return result


def _for_each_axis(given: Any, axes: int) -> list[int]:
    numbers = [int(number) for number in given]
    return numbers * axes if len(numbers) == 1 else numbers


def _batch_norm(node: Any, importer: Any) -> Any:
    """(input, weight or None, bias or None, running mean, running variance, ...), with the model's statistics."""
    with _in_float32(node.args[:5], importer):
        result = importer._batch_norm_legit_no_training(node)
    result, others = _cast(result, _type_of(node), importer), node.meta["val"]
    if not isinstance(others, Sequence):
        return result
    # Statistics of the batch are empty, since the model's are used.
    empty = [
        importer.block_builder.emit(R.zeros([int(extent) for extent in each.shape], dtype_name(each.dtype)))
        for each in others[1:]
    ]
    return relax.Tuple([result, *empty])
