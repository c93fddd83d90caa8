# SPDX-License-Identifier: Apache-2.0
"""Test whether a library is available. The first answer opens the library, so only operators that it computes ask."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from ...compute.cuda import library
from ...config import StitchConfig
from ..layout.convolutions import suits_library


def has_cublaslt(config: StitchConfig) -> Callable[[], bool]:
    """Return a test whether cuBLASLt is installed."""
    return cache(lambda: library.why_not(library.CUBLASLT, config) is None)


def has_cudnn(config: StitchConfig) -> Callable[[], bool]:
    """Return a test whether cuDNN is installed."""
    return cache(lambda: library.why_not(library.CUDNN, config) is None)


def suits_cudnn(config: StitchConfig) -> Callable[[Any, bool], bool]:
    """Return a test whether cuDNN computes a convolution faster with channels innermost.

    The test takes the convolution, and whether its result is read with channels innermost.
    """
    is_there = has_cudnn(config)
    return lambda call, read_last: suits_library(config.tf32, call, read_last) and is_there()
