# SPDX-License-Identifier: Apache-2.0
"""Complete the CUDA C that TVMs with Relay generate, and compile it without nvcc if necessary.

Their code generator cannot set a launch bound, and defines functions that newer CUDA headers also define. TVM's
callback for the source text corrects both.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tvm

from ..codegen.gpu.grid_barrier import GRID_BARRIER
from ..codegen.gpu.launch_bounds import RESIDENT_BLOCKS
from ..repairs.relay.array_alignment import aligned_arrays
from ..repairs.relay.constant_addresses import without_constant_addresses
from ..repairs.relay.half_functions import own_half_functions
from ..repairs.tir.device_math import FUNCTIONS as MATH
from ..repairs.tir.device_math import device_name
from ..repairs.tir.nan_extrema import FUNCTIONS
from ..repairs.tir.negation import FUNCTION, NEGATED
from .global_function import registered
from .grid_barrier import FUNCTION as BARRIER
from .shared_context import SharedContext

POSTPROC = "tvm_callback_cuda_postproc"
COMPILE = "tvm_callback_cuda_compile"
DEFAULT_ARCH = "sm_90"

_NOTE = re.compile(
    r"^[ \t]*static_assert\([^\n]*\""
    + re.escape(RESIDENT_BLOCKS).replace(r"\{\}", r"(\d+)")
    + r"\"\);[ \t]*\n",
    re.MULTILINE,
)
_FIRST_KERNEL = re.compile(r'^extern "C" __global__', re.MULTILINE)
_KERNEL = re.compile(r"__launch_bounds__\(\d+\)\s+(\w+)\s*\([^;{]*\)\s*\{")
_BOUND = re.compile(r"__launch_bounds__\((\d+)\)(\s+(\w+)\s*\()")


def fix_source(code: str, target: Any = None) -> str:
    """Return the CUDA C of a module, valid for CUDA 11 to 13, with the launch bounds that plans rely on.

    - Functions on float16 that the code defines because CUDA lacked them (``htanh``, which newer headers have) are
      renamed, with their calls.
    - A kernel's note on how many of its blocks fit a multiprocessor (``RESIDENT_BLOCKS``) becomes the second number
      of its ``__launch_bounds__``.
    - A constant that is written as its bits, and whose address the code takes, is written without taking the address.
    - Arrays in shared memory and registers are aligned like the vectors that read them.
    - Maxima and minima that keep NaN are defined if kernels call them (``tvm_stitch.repairs.tir.nan_extrema``).
    - Functions of float32 are defined if kernels call them (``tvm_stitch.repairs.tir.device_math``).
    - Negation of int32 is defined if kernels call it (``tvm_stitch.repairs.tir.negation``).
    - The barrier across the grid is defined if kernels call it (``tvm_stitch.relay.grid_barrier``).

    Other code is returned unchanged. A second application changes nothing.

    Args:
        code: CUDA C.
        target: the target. It is not used, but part of TVM's callback.
    """
    del target
    fixed = _bound(aligned_arrays(without_constant_addresses(own_half_functions(code))))
    math = {device_name(call): source for call, source in MATH.items()}
    for name, function in {**FUNCTIONS, **math, NEGATED: FUNCTION, GRID_BARRIER: BARRIER}.items():
        fixed = defined(fixed, name, function)
    return fixed


def defined(code: str, name: str, function: str) -> str:
    """Return the CUDA C with ``function`` before its first kernel, if ``name`` is called and the function is
    missing.
    """
    if function in code or not re.search(rf"\b{name}\s*\(", code):
        return code
    first = _FIRST_KERNEL.search(code)
    assert first is not None, "a call without a kernel"
    return code[: first.start()] + function + code[first.start() :]


def _bound(code: str) -> str:
    """Return the code with launch bounds from notes. A note belongs to the last kernel whose body begins before it."""
    starts = list(_KERNEL.finditer(code))
    blocks = {}
    for here, following in zip(starts, [*starts[1:], None]):
        note = _NOTE.search(code, here.end(), len(code) if following is None else following.start())
        if note is not None:
            blocks[here[1]] = note[1]

    def bound(match: re.Match[str]) -> str:
        least = blocks.get(match[3])
        return match[0] if least is None else f"__launch_bounds__({match[1]}, {least}){match[2]}"

    return _BOUND.sub(bound, _NOTE.sub("", code))


@contextmanager
def fixed_cuda_source() -> Iterator[None]:
    """Compile TVM's CUDA modules from fixed source in this context, with NVRTC if nvcc is not found.

    Callbacks registered before (``tvm_callback_cuda_postproc``, ``tvm_callback_cuda_compile``) still run, on the
    fixed source, and are restored at the end. Contexts may be nested, and threads share them. The first one
    registers, the last one restores.
    """
    with _callbacks.shared():
        yield


@contextmanager
def _registered_callbacks() -> Iterator[None]:
    post, build = (tvm.get_global_func(name, allow_missing=True) for name in (POSTPROC, COMPILE))

    def postprocess(code: str, target: tvm.target.Target) -> str:
        fixed = fix_source(str(code), target)
        return fixed if post is None else str(post(fixed, target))

    def compile_source(code: str, target: tvm.target.Target) -> Any:
        return _compile(str(code), target, build)

    with registered(POSTPROC, postprocess), registered(COMPILE, compile_source):
        yield


_callbacks = SharedContext(_registered_callbacks)


def _compile(code: str, target: tvm.target.Target, build: Callable[..., Any] | None) -> Any:
    """Return the output of the registered compiler, or NVRTC's cubin if that compiler misses nvcc."""
    if build is not None:
        try:
            return build(code, target)
        except FileNotFoundError as err:
            if "nvcc" not in str(err):
                raise
    return compile_with_nvrtc(code, str(getattr(target, "arch", "") or DEFAULT_ARCH))


def compile_with_nvrtc(code: str, arch: str = DEFAULT_ARCH) -> bytearray:
    """Return the cubin of CUDA C for an architecture such as ``"sm_90"``.

    NVRTC is the library that TVM is linked to, or one on the library path. CUDA's headers come from NVIDIA's
    wheels, or from a toolkit (``CUDA_PATH``, ``CUDA_HOME``, ``/usr/local/cuda``).

    Raises:
        RuntimeError: with NVRTC's messages if the code does not compile, or if there is no NVRTC.
    """
    lib = _nvrtc()
    program = ctypes.c_void_p()
    _checked(lib, lib.nvrtcCreateProgram(
        ctypes.byref(program), code.encode(), b"tvm_kernels.cu", 0, None, None
    ))  # fmt: skip
    try:
        options = [f"--gpu-architecture={arch}", *(f"--include-path={path}" for path in _include_folders())]
        array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if lib.nvrtcCompileProgram(program, len(options), array):
            log = _read(lib, "ProgramLog", program).rstrip(b"\0").decode(errors="replace")
            raise RuntimeError(f"NVRTC rejected a module:\n{log}\n{code}")
        return bytearray(_read(lib, "CUBIN", program))
    finally:
        lib.nvrtcDestroyProgram(ctypes.byref(program))


def _read(lib: ctypes.CDLL, what: str, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _checked(lib, getattr(lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _checked(lib, getattr(lib, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw


def _checked(lib: ctypes.CDLL, status: int) -> None:
    if status:
        lib.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise RuntimeError(f"NVRTC: {lib.nvrtcGetErrorString(status).decode()}")


@functools.cache
def _nvrtc() -> ctypes.CDLL:
    wheels = [p for folder in sys.path for p in glob.glob(f"{folder}/nvidia/*/lib/libnvrtc.so.*")]
    for name in ("libnvrtc.so.12", "libnvrtc.so.13", "libnvrtc.so", *sorted(wheels)):
        try:
            lib = ctypes.CDLL(name)
        except OSError:
            continue
        # Without argument types, ctypes would pass handles as C ints.
        handle, pointer = ctypes.c_void_p, ctypes.c_void_p
        lib.nvrtcCompileProgram.argtypes = [handle, ctypes.c_int, pointer]
        lib.nvrtcDestroyProgram.argtypes = [pointer]
        for what in ("ProgramLog", "CUBIN"):
            getattr(lib, f"nvrtcGet{what}Size").argtypes = [handle, pointer]
            getattr(lib, f"nvrtcGet{what}").argtypes = [handle, pointer]
        return lib
    raise RuntimeError(
        "CUDA C cannot be compiled: nvcc is not on the path and there is no NVRTC; "
        "install CUDA's toolkit, or pip install nvidia-cuda-nvrtc-cu12 nvidia-cuda-runtime-cu12"
    )


def _include_folders() -> list[str]:
    """Return the first folder that has CUDA's headers, so that versions do not mix. Empty if there is none."""
    wheels = [p for folder in sys.path for p in glob.glob(f"{folder}/nvidia/cuda_runtime/include")]
    toolkits = [os.path.join(os.environ[v], "include") for v in ("CUDA_PATH", "CUDA_HOME") if v in os.environ]
    for path in (*wheels, *toolkits, "/usr/local/cuda/include"):
        if os.path.exists(os.path.join(path, "cuda_fp16.h")):
            return [path]
    return []
