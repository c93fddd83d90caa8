# SPDX-License-Identifier: Apache-2.0
"""cuBLASLt on this machine: where it lies, and the functions that call it, which models carry with them."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

from ...embedded import Embedded

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
_CALLS = Embedded(Path(__file__).with_name("cublaslt.cc"), "calls of cuBLASLt")
_loaded: list[bool] = []


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
    return calls_missing()


def calls_missing() -> str | None:
    """Why models that call cuBLASLt cannot be compiled here, in one line; None where they can, with cuBLASLt or not."""
    return _CALLS.needs()


def load() -> None:
    """Open cuBLASLt where it is found here.

    Raises:
        RuntimeError: where cuBLASLt or a C++ compiler is missing, with how to get it, or cuBLASLt cannot be opened.
        OSError: if the cache folder cannot be used.
    """
    if _loaded:
        return
    if (reason := missing()) is not None:
        raise RuntimeError(reason)
    module()[_OPEN](str(find()))
    _loaded.append(True)


def module() -> Any:
    """The functions, for an executable to import: they run in this process, and its library has them linked in.

    cuBLASLt need not be here: it is opened at the first product.

    Raises:
        RuntimeError: where no C++ compiler is, or it rejects the source.
        OSError: if the cache folder cannot be used.
    """
    return _CALLS.module()
