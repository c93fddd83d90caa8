# SPDX-License-Identifier: Apache-2.0
"""cuBLASLt on this machine: where it lies, and the functions of TVM's registry that call it, compiled once."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import os
from pathlib import Path

import tvm
import tvm_ffi

from ...native_code import cache_folder, compile_whole, compiler
from ...private_files import check_own_file

MATMUL = "tvm_stitch.cublaslt.matmul"
"""The function that computes a product; its arguments are those of :mod:`tvm_stitch.compute.cuda.strided`."""

LIBRARY_VARIABLE = "TVM_STITCH_CUBLASLT"
"""The environment variable that names the library's file; with ``none`` it counts as not installed."""

HOW_TO_GET_IT = "pip install nvidia-cublas, or nvidia-cublas-cu12 for CUDA 12"

_NAMES = ("libcublasLt.so.13", "libcublasLt.so.12")
_IN_WHEELS = ("nvidia/cu13/lib", "nvidia/cublas/lib")
_ON_SYSTEMS = (
    "/usr/local/cuda/lib64",
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
)
_OPEN = "tvm_stitch.cublaslt.open"
_SOURCE = Path(__file__).with_name("cublaslt.cc")
_loaded: list[bool] = []
_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-Wall")


def find() -> Path | None:
    """The file of cuBLASLt: the one that $TVM_STITCH_CUBLASLT names, else NVIDIA's wheels', PyTorch's, the system's."""
    if named := os.environ.get(LIBRARY_VARIABLE):
        path = Path(named)
        return path if path.is_file() else None
    for name in _NAMES:
        for folder in _folders():
            if (folder / name).is_file():
                return folder / name
    return None


def _folders() -> list[Path]:
    wheels = [place / folder for place in _places("nvidia") for folder in _IN_WHEELS]
    torch = [place / "torch" / "lib" for place in _places("torch")]
    named = [Path(p) for p in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if p]
    toolkit = [Path(home) / "lib64" for home in [os.environ.get("CUDA_HOME")] if home]
    return [*wheels, *torch, *named, *toolkit, *map(Path, _ON_SYSTEMS)]


def _places(package: str) -> list[Path]:
    """The folders that hold a package, which is not imported."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return []
    return [Path(place).parent for place in (spec.submodule_search_locations or ())] if spec else []


def missing() -> str | None:
    """Why products cannot be computed by cuBLASLt with what is installed here, in one line; None where they can."""
    if _loaded:
        return None
    named = os.environ.get(LIBRARY_VARIABLE)
    if find() is None:
        if named not in (None, "", "none"):
            return f"{LIBRARY_VARIABLE} names no library: {named}"
        return f"cuBLASLt is not installed ({HOW_TO_GET_IT})"
    if not _compiled_path().exists():
        try:
            _compiler()
        except RuntimeError as error:
            return str(error)
    return None


def load() -> None:
    """Put the functions into TVM's registry, compiled if they are not in the cache, and open cuBLASLt.

    A process that runs a model compiled by another one calls it before it makes a ``relax.VirtualMachine``.

    Raises:
        RuntimeError: where cuBLASLt or a C++ compiler is missing, with how to get it, or cuBLASLt cannot be opened.
        OSError: if the cache folder cannot be used.
    """
    if _loaded:
        return
    if (reason := missing()) is not None:
        raise RuntimeError(reason)
    register()
    tvm.get_global_func(_OPEN)(str(find()))
    _loaded.append(True)


def register() -> None:
    """Put the functions into TVM's registry without opening cuBLASLt, which the first product then does.

    Raises:
        RuntimeError: where no C++ compiler is, or it rejects the source.
        OSError: if the cache folder cannot be used.
    """
    if tvm.get_global_func(_OPEN, allow_missing=True) is None:
        ctypes.CDLL(str(check_own_file(build())))


def build() -> Path:
    """The library of the functions, compiled if it is not in the cache; it needs neither CUDA nor cuBLASLt.

    Raises:
        RuntimeError: where no C++ compiler is, or it rejects the source.
        OSError: if the cache folder cannot be used.
    """
    path = _compiled_path()
    if not path.exists():
        ffi = Path(tvm_ffi.libinfo.find_libtvm_ffi()).parent
        includes = {tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path()}
        flags = [*_FLAGS, *(f"-I{folder}" for folder in sorted(includes)), str(_SOURCE)]
        # By name: the process has TVM's own loaded already.
        links = [f"-L{ffi}", "-ltvm_ffi", f"-Wl,-rpath,{ffi}", "-ldl"]
        compile_whole([_compiler()[0], *flags, *links], path, "the calls of cuBLASLt")
    return path


def _compiler() -> tuple[str, str]:
    return compiler("calls of cuBLASLt are compiled once, by a C++ compiler ($CXX or g++)")


@functools.cache
def _compiled_path() -> Path:
    # Not the compiler's version: what was compiled serves machines that have none.
    parts = (_SOURCE.read_bytes(), repr(_FLAGS).encode(), tvm_ffi.__version__.encode())
    return cache_folder("cublaslt") / f"libcublaslt-{hashlib.sha256(b''.join(parts)).hexdigest()[:24]}.so"
