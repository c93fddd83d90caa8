# SPDX-License-Identifier: Apache-2.0
"""Targets for which nothing is stitched: TVM compiles everything, and its errors are reported in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..support.failures import error_text, reraise_fatal
from ..support.quiet import without_native_stderr
from .errors import Failure

STITCHED_FOR = ("llvm", "cuda")


@contextmanager
def by_tvm_alone(target: Any) -> Iterator[None]:
    """Hide the native code's output to stderr in this context, for targets for which nothing is stitched.

    Raises:
        Failure: if TVM fails for such a target.
    """
    if target.kind.name in STITCHED_FOR:
        yield
        return
    try:
        with without_native_stderr():
            yield
    except Exception as error:
        reraise_fatal(error)
        kinds = " and ".join(STITCHED_FOR)
        raise Failure(
            f"TVM's own compiler for {target.kind.name} failed: {error_text(error)}; kernels are stitched for {kinds}"
        ) from error
