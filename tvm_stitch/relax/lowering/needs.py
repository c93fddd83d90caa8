# SPDX-License-Identifier: Apache-2.0
"""List the files and programs that a compiled model needs at run time, in addition to its exported library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...compute.cuda import library
from ...deploy.export import HOW_TO_GET_IT as COMPILER
from ..rewriting.operators import operator_name
from .embed_libraries import called_by_name

EXTRA_PREFIX = "tvm.contrib."
"""Prefix of functions in the part of TVM's runtime for functions that few models call, such as sorts."""

_TVM = "pip install apache-tvm=={version}, or that file and libtvm_ffi of its wheels"


PYTHON = "Python with TVM"
"""Name of the need of CUDA kernels that are compiled when they are first launched."""


def needs(lowered: tvm.IRModule, target: tvm.target.Target) -> list[dict[str, str]]:
    """Return the needs of a process that runs a model: each with its name, its purpose, and how to get it.

    Args:
        lowered: the module that code was generated from.
        target: the target of the model.
    """
    how = _TVM.format(version=tvm.__version__)
    needed = [("libtvm_runtime", "runs the model", how)]
    names = called_by_name(lowered) | _called_in_kernels(lowered)
    if any(name.startswith(EXTRA_PREFIX) for name in names):
        needed.append(("libtvm_runtime_extra", "has functions that the model calls", how))
    if target.kind.name == "cuda":
        needed.append(("libtvm_runtime_cuda", "launches kernels", how))
        needed.append(
            ("CUDA", "drives the device", "NVIDIA's driver, and libcudart: pip install nvidia-cuda-runtime")
        )
        needed.append((PYTHON, "compiles kernels when they are first launched", f"{how}; {COMPILER}"))
    for each in library.LIBRARIES:
        if each.function in names:
            needed.append((each.title, f"computes {each.computes}", each.how_to_get_it))
    return [dict(zip(("name", "what", "how"), entry)) for entry in needed]


def without_python(needed: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Return the needs of a model whose library has its CUDA kernels as machine code."""
    return [each for each in needed if each["name"] != PYTHON]


def _called_in_kernels(mod: tvm.IRModule) -> set[str]:
    """Return the functions of TVM's registry that PrimFuncs call."""
    calls: list[Any] = []
    for _, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            tvm_ffi.structural_walk(func.body, (tvm.ir.Call, calls.append), order="post")
    return {str(call.args[0].value) for call in calls if operator_name(call) == "tirx.tvm_call_packed"}
