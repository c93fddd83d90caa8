# SPDX-License-Identifier: Apache-2.0
"""TVM tensors that claim to be on a CUDA device but lie in the memory of the emulated one."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import tvm

from .memory import DeviceBuffer

HAS_RELAY = find_spec(f"{tvm.__name__}.relay") is not None
"""True for TVMs before 0.20, whose runtime has NDArrays and another registry of functions."""

CUDA = 2
"""DLDeviceType of the device that tensors claim to be on."""


class _Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_alive: dict[int, tuple[Any, ...]] = {}


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _delete(managed: int) -> None:
    _alive.pop(managed, None)


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class _Exporter:
    """The interface that from_dlpack of newer TVMs expects."""

    def __init__(self, capsule: object) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: object) -> object:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, 0


def device_tensor(buffer: DeviceBuffer, shape: Sequence[int], dtype: str, offset: int = 0) -> Any:
    """Return a compact tensor of `shape` and `dtype` that starts `offset` bytes into a buffer and keeps it alive."""
    kind = tvm.DataType(dtype)
    code = int(kind.type_code)
    dims = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    steps = (ctypes.c_int64 * max(len(shape), 1))()
    step = 1
    for i in reversed(range(len(shape))):
        steps[i] = step
        step *= int(shape[i])
    managed = _Managed(
        tensor=_Tensor(
            data=buffer.address + offset,
            device_type=CUDA,
            device_id=0,
            ndim=len(shape),
            code=code,
            bits=kind.bits,
            lanes=kind.lanes,
            shape=ctypes.cast(dims, ctypes.POINTER(ctypes.c_int64)),
            strides=ctypes.cast(steps, ctypes.POINTER(ctypes.c_int64)),
            byte_offset=0,
        ),
        context=None,
        deleter=ctypes.cast(_delete, ctypes.c_void_p).value,
    )
    address = ctypes.addressof(managed)
    _alive[address] = (managed, dims, steps, buffer)
    capsule = _new_capsule(address, b"dltensor", None)
    if not HAS_RELAY:
        import tvm_ffi

        return tvm_ffi.from_dlpack(_Exporter(capsule))
    return tvm.nd.from_dlpack(capsule)


def address_of(tensor: Any) -> int:
    """Return the address of a tensor's first element."""
    if not HAS_RELAY:
        pointer = tensor.data_ptr
        return int(pointer() if callable(pointer) else pointer)
    held = tensor.handle.contents
    return int(held.data or 0) + int(held.byte_offset)


def shape_of(tensor: Any) -> tuple[int, ...]:
    """Return a tensor's shape."""
    return tuple(int(e) for e in tensor.shape)


def dtype_of(tensor: Any) -> str:
    """Return a tensor's dtype."""
    return str(tensor.dtype)


def itemsize_of(dtype: str) -> int:
    """Return the bytes of an element."""
    kind = tvm.DataType(dtype)
    return max(1, (kind.bits * kind.lanes + 7) // 8)


def nbytes_of(tensor: Any) -> int:
    """Return the bytes of a compact tensor."""
    count = 1
    for extent in tensor.shape:
        count *= int(extent)
    return count * itemsize_of(str(tensor.dtype))
