# SPDX-License-Identifier: Apache-2.0
"""Targets that nothing is stitched for: TVM compiles all by itself, and what goes wrong there is told in a line."""

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
    """Around what compiles for a target: for one of another kind, without what native code writes to stderr.

    Raises:
        Failure: where TVM fails for a target of another kind.
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
