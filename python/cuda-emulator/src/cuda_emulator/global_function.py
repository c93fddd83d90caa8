# SPDX-License-Identifier: Apache-2.0
"""Temporarily replace functions that a TVM with Relay looks up by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tvm


@contextmanager
def registered(name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Register ``function`` as ``name`` in this context, then restore the former function, or none."""
    before = tvm.get_global_func(name, allow_missing=True)
    tvm.register_func(name, function, override=True)
    try:
        yield
    finally:
        if before is None:
            tvm._ffi.registry.remove_global_func(name)
        else:
            tvm.register_func(name, before, override=True)
