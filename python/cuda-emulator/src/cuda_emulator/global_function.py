# SPDX-License-Identifier: Apache-2.0
"""Functions that a TVM with Relay looks up by name, in the place of those that were registered before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tvm


@contextmanager
def registered(name: str, function: Callable[..., Any]) -> Iterator[None]:
    """While this lasts, ``name`` is ``function``; then what it was before, or nothing."""
    before = tvm.get_global_func(name, allow_missing=True)
    tvm.register_func(name, function, override=True)
    try:
        yield
    finally:
        if before is None:
            tvm._ffi.registry.remove_global_func(name)
        else:
            tvm.register_func(name, before, override=True)
