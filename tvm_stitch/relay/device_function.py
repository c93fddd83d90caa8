# SPDX-License-Identifier: Apache-2.0
"""Device functions that kernels call by name: added to the CUDA C where they are called."""

from __future__ import annotations

import re

_KERNEL = re.compile(r'^extern "C" __global__', re.MULTILINE)


def defined(code: str, name: str, function: str) -> str:
    """The CUDA C with ``function`` in front of its first kernel, if ``name`` is called and it is not there yet."""
    if function in code or not re.search(rf"\b{name}\s*\(", code):
        return code
    first = _KERNEL.search(code)
    assert first is not None, "a call without a kernel"
    return code[: first.start()] + function + code[first.start() :]
