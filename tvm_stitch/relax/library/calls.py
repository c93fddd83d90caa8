# SPDX-License-Identifier: Apache-2.0
"""Checks for the passes that call NVIDIA's libraries: the dtypes these take, and a missing library.

The first answer of a test for a library opens it, so only operators that it computes ask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import tvm
from tvm import relax

from ...compute.cuda import library as libraries
from ...compute.cuda.library import why_not
from ...compute.cuda.shared_library import SharedLibrary
from ...config import StitchConfig
from ...support.failures import Refusal
from ...target import capability_of
from ..layout.convolutions import suits_library
from ..rewriting.compute_pass import Implementations

_BFLOAT16_FROM = 80


def check_capability(target: tvm.target.Target, dtype: str) -> None:
    """Raise a Refusal if devices of a target have no arithmetic of a dtype."""
    if dtype == "bfloat16" and capability_of(target) < _BFLOAT16_FROM:
        raise Refusal(f"bfloat16 needs compute capability {_BFLOAT16_FROM / 10:.1f}")


def has_calls(
    functions: Iterable[relax.Function],
    name: str,
    is_one: Callable[[relax.Expr], bool],
    library: SharedLibrary,
    config: StitchConfig,
    computed: Implementations,
) -> bool:
    """Return whether functions have values that a library is to compute.

    Args:
        functions: Relax functions.
        name: the name of one such value, in words.
        is_one: returns whether a bound value is one.
        library: the library that may compute them.
        config: says which libraries are requested.
        computed: receives the reason if all of them are left to TVM.
    """
    count = sum(is_one(value) for func in functions for value in relax.analysis.get_var2val(func).values())
    if not count:
        return False
    if (reason := why_not(library, config)) is not None:
        computed[f"{count} {name}{'s' if count > 1 else ''}"] = f"TVM: {reason}"
        return False
    return True


def has_cublaslt(config: StitchConfig) -> Callable[[], bool]:
    """Return a test whether cuBLASLt is installed."""
    return cache(lambda: why_not(libraries.CUBLASLT, config) is None)


def has_cudnn(config: StitchConfig) -> Callable[[], bool]:
    """Return a test whether cuDNN is installed."""
    return cache(lambda: why_not(libraries.CUDNN, config) is None)


def suits_cudnn(config: StitchConfig) -> Callable[[Any, bool], bool]:
    """Return a test whether cuDNN computes a convolution faster with channels innermost.

    The test takes the convolution, and whether its result is read with channels innermost.
    """
    is_there = has_cudnn(config)
    return lambda call, read_last: suits_library(config.tf32, call, read_last) and is_there()
