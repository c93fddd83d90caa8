# SPDX-License-Identifier: Apache-2.0
"""Temporarily replace objects that TVM looks up by name: functions of its registry, and attributes of modules."""

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


@contextmanager
def replaced(owner: Any, **values: Any) -> Iterator[None]:
    """Replace attributes of a module or class in this context."""
    before = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)
