# SPDX-License-Identifier: Apache-2.0
"""What TVM looks up by name, other than it was for a while: functions of its registry, and attributes of modules."""

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


@contextmanager
def replaced(owner: Any, **values: Any) -> Iterator[None]:
    """While this lasts, attributes of a module or class are others."""
    before = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)
