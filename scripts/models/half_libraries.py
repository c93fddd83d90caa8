# SPDX-License-Identifier: Apache-2.0
"""cuBLASLt's products and cuDNN's convolutions on a CPU, rounded as on a GPU.

Operands are as they are given. Sums, the bias, the residual and ReLU are float32. The result is rounded once, to the
type in which it is stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import tvm

from tvm_stitch.compute.cuda import library

CONVOLUTION, MATMUL = "models.half_libraries.convolution", "models.half_libraries.matmul"


@contextmanager
def pretended() -> Iterator[None]:
    """Let the passes call the functions of this module, as if cuBLASLt and cuDNN were installed."""
    names = {library.CUDNN: CONVOLUTION, library.CUBLASLT: MATMUL}
    before = {each: (each.function, each.opened) for each in names}
    for each, name in names.items():
        each.function, each.opened = name, True
    try:
        yield
    finally:
        for each, (function, opened) in before.items():
            each.function, each.opened = function, opened


def _wide(tensor: Any) -> torch.Tensor:
    """Return a tensor of the runtime in float32."""
    return torch.from_numpy(np.asarray(tensor.numpy(), "float32"))


def _store(values: torch.Tensor, out: Any) -> None:
    """Round values to the type of ``out``, and store them there."""
    dtype = getattr(torch, str(out.dtype))
    rounded = values.contiguous().to(dtype).float().numpy()
    out.copyfrom(rounded.astype(out.numpy().dtype))


def convolution(data: Any, weight: Any, *rest: Any) -> None:
    """Compute ``tvm_stitch.cudnn.convolution``.

    Raises:
        NotImplementedError: for the gradient of a weight, which no inference needs.
    """
    *more, numbers, mode, out, _workspace = rest
    words = str(mode).split()
    if "weight_gradient" in words:
        raise NotImplementedError("gradients of weights are not simulated")
    x, w = _wide(data), _wide(weight)
    last = "channels_last" in words
    if last:
        x, w = x.movedim(-1, 1), w.movedim(-1, 1)
    spatial = x.dim() - 2
    groups, *others = map(int, numbers)
    strides, padding, dilation = (others[i * spatial : (i + 1) * spatial] for i in range(3))
    if "data_gradient" in words:
        extents = [
            (e - 1) * s - 2 * p + d * (k - 1) + 1
            for e, s, p, d, k in zip(x.shape[2:], strides, padding, dilation, w.shape[2:])
        ]
        wanted = [int(e) for e in tuple(out.shape)[2:]]
        added = [a - b for a, b in zip(wanted, extents)]
        result = torch.conv_transpose2d(x, w, None, strides, padding, added, groups, dilation)
    else:
        function = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}[spatial]
        result = function(x, w, None, strides, padding, dilation, groups)
    result = result.movedim(1, -1) if last else result
    for operand in more:  # the bias, then the residual
        result = result + _wide(operand)
    _store(result.relu() if "relu" in words else result, out)


def matmul(*args: Any) -> None:
    """Compute ``tvm_stitch.cublaslt.matmul``."""
    left, right, *extras, numbers, mode, out, _workspace = args
    m, n, k, batch, *strides = map(int, numbers)
    left_line, right_line, out_line, left_batch, right_batch, out_batch = strides
    words = str(mode).split()

    def matrices(
        tensor: torch.Tensor, shape: Any, line: int, of_batch: int, transposed: bool
    ) -> torch.Tensor:
        lines, length = shape[::-1] if transposed else shape
        found = tensor.reshape(-1).as_strided((batch, lines, length), (of_batch, line, 1))
        return found.transpose(1, 2) if transposed else found

    a = matrices(_wide(left), (m, k), left_line, left_batch, "left_transposed" in words)
    b = matrices(_wide(right), (k, n), right_line, right_batch, "right_transposed" in words)
    value, given = torch.matmul(a, b), list(extras)
    if "bias" in words:
        value = value + _wide(given.pop(0))
    if "residual" in words:
        value = value + matrices(_wide(given.pop(0)), (m, n), out_line, out_batch, False)
    made = torch.full([int(e) for e in out.shape], float("nan"))
    matrices(made, (m, n), out_line, out_batch, False).copy_(value.relu() if "relu" in words else value)
    _store(made, out)


tvm.register_global_func(CONVOLUTION, convolution, override=True)
tvm.register_global_func(MATMUL, matmul, override=True)
