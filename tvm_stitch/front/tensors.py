# SPDX-License-Identifier: Apache-2.0
"""Arrays of NumPy and PyTorch as tensors of TVM, and back. Memory is shared where both can read it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm

from ..execution.tensors import TensorSpec, symbol_and_value

_ALIGNMENT = 64
"""Bytes. Kernels read vectors, and TVM refuses memory that is not aligned so."""

_CPU = tvm.cpu(0)
_PLAIN = frozenset(
    ["bool", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))]
    + ["float16", "float32", "float64"]
)
"""Types that NumPy and TVM exchange without a copy."""


def device_of(target: tvm.target.Target) -> Any:
    """Return the first device of a target's kind."""
    return tvm.device("cuda" if target.kind.name == "cuda" else "cpu", 0)


def kind_of(value: Any) -> str:
    """Return whose array a value is: ``"torch"``, ``"tvm"`` or ``"numpy"``, or ``""`` for none."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return "torch"
    if isinstance(value, tvm.runtime.Tensor):
        return "tvm"
    return "numpy" if isinstance(value, (np.ndarray, np.generic)) else ""


def taken(value: Any, spec: TensorSpec, device: Any) -> Any:
    """Return an array as a tensor on a device, with its own memory if that lies there and is compact.

    Args:
        value: an array of NumPy, PyTorch or TVM, or a number of Python for an input without axes.
        spec: the input.
        device: the device of the model.

    Raises:
        TypeError: if the value is no array, or of another dtype than the input.
        ValueError: if its shape does not fit, or if it has no data.
    """
    kind = kind_of(value)
    if not kind and isinstance(value, (bool, int, float)) and not spec.shape:
        value, kind = np.asarray(value, spec.numpy_dtype), "numpy"
    if not kind:
        raise TypeError(
            f"the input {spec} must be an array of NumPy, PyTorch or TVM, not {type(value).__name__}"
        )
    dtype = str(value.dtype).removeprefix("torch.")
    shape = [int(size) for size in value.shape]
    if dtype != spec.dtype:
        raise TypeError(f"the input {spec} was given a tensor of {dtype}; convert it first")
    if not spec.takes(shape):
        raise ValueError(f"the input {spec} was given a tensor of shape {shape}")
    if kind == "torch":
        _check_dense(value, spec)
        return _of_torch(value, device)
    if kind == "numpy":
        return _of_numpy(np.asarray(value), device)
    return value if value.device == device else value.copyto(device)


def check_sizes(specs: Sequence[TensorSpec], values: Sequence[Any]) -> None:
    """Check that a symbolic dimension has one size in all inputs.

    Args:
        specs: the inputs.
        values: their tensors, which fit one by one.

    Raises:
        ValueError: with the two inputs that differ.
    """
    known: dict[str, tuple[TensorSpec, int]] = {}
    for spec, value in zip(specs, values, strict=True):
        for dim, size in zip(spec.shape, value.shape, strict=True):
            if isinstance(dim, int) or dim == "?" or (solved := symbol_and_value(dim, int(size))) is None:
                continue
            symbol, own = solved
            other, first = known.setdefault(symbol, (spec, own))
            if first != own:
                raise ValueError(f"{symbol} is {first} in the input {other}, and {own} in the input {spec}")


def _check_dense(value: Any, spec: TensorSpec) -> None:
    """Raise an error for a tensor of PyTorch that has no data, or not one number after the other."""
    import torch

    if value.is_meta:
        raise ValueError(f"the input {spec} was given a tensor of the device meta, which has no data")
    if value.layout != torch.strided:
        raise TypeError(
            f"the input {spec} was given a tensor of layout {value.layout}; call to_dense() first"
        )


def _of_torch(value: Any, device: Any) -> Any:
    import torch

    where = torch.device("cuda", device.index) if "cuda" in str(device) else torch.device("cpu")
    return tvm.runtime.from_dlpack(aligned(value.detach().to(where)))


def _of_numpy(value: np.ndarray, device: Any) -> Any:
    """Return a copy of an array on a device.

    TVM's own copy takes 14 us for a small array, and this one 3 us.
    """
    if device != _CPU or not value.size or str(value.dtype) not in _PLAIN:
        return tvm.runtime.tensor(np.asarray(value, order="C"), device)
    memory = np.empty(value.nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    copy: np.ndarray = np.ndarray(value.shape, value.dtype, memory, start)
    copy[...] = value
    return tvm.runtime.from_dlpack(copy)


def aligned(value: Any) -> Any:
    """Return a tensor of PyTorch whose memory kernels can read: the tensor itself, or a copy."""
    value = value.resolve_conj().resolve_neg().contiguous()
    return value.clone() if value.data_ptr() % _ALIGNMENT else value


def given_back(tensor: Any, kind: str) -> Any:
    """Return a result as an array of a kind, with the same memory where the kind can read it."""
    if kind == "tvm":
        return tensor
    if kind == "torch":
        import torch

        return torch.from_dlpack(tensor)
    if tensor.device == _CPU and str(tensor.dtype) in _PLAIN:  # TVM's own copy takes 5 us more
        return np.array(np.from_dlpack(tensor))
    return tensor.numpy()


def overwrite(target: Any, tensor: Any) -> None:
    """Copy a result into an array of the caller that the model changes."""
    kind = kind_of(target)
    if kind == "torch":
        import torch

        with torch.no_grad():
            target.copy_(torch.from_dlpack(tensor))
    elif kind == "numpy":
        np.copyto(target, tensor.numpy())
    elif not target.same_as(tensor):
        tensor.copyto(target)
