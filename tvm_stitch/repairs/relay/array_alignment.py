# SPDX-License-Identifier: Apache-2.0
"""Align arrays in shared memory and registers like the vectors that read them.

Fault: TVM's CUDA C reads vectors of 16 bytes from arrays that it declares with the alignment of their elements. The
    access is illegal wherever the compiler places such an array at another address.
Seen in: TVM 0.17.dev0
Input: a vectorized loop of four float32 over a shared buffer of 64, target cuda
Upstream: none known
"""

from __future__ import annotations

import re

_ARRAY = re.compile(r"^([ \t]+(?:__shared__ )?)((?:\w+ )+\w+\[(?!1\])\d+\];)", re.MULTILINE)


def aligned_arrays(code: str) -> str:
    """Return the CUDA C with every array of more than one element aligned to 16 bytes."""
    return _ARRAY.sub(r"\1__align__(16) \2", code)
