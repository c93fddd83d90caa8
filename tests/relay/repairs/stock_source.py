# SPDX-License-Identifier: Apache-2.0
"""CUDA C as a TVM with Relay writes it, before any repair and without a compiler."""

from __future__ import annotations

from collections.abc import Callable

import tvm

from tvm_stitch.relay.cuda_source import COMPILE


def source(build: Callable[[], object]) -> str:
    """Return the CUDA C that ``build`` hands to the compiler."""
    seen: list[str] = []
    before = tvm.get_global_func(COMPILE)
    tvm.register_func(COMPILE, lambda code, _: seen.append(code) or code, override=True)
    try:
        build()
    finally:
        tvm.register_func(COMPILE, before, override=True)
    return seen[-1]
