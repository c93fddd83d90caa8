# SPDX-License-Identifier: Apache-2.0
"""Rename the functions on float16 that generated CUDA C defines.

Fault: TVM's CUDA C defines functions on float16 that CUDA once lacked, such as ``htanh``. Newer headers of CUDA define
    them as well, and the compiler rejects the second definition.
Seen in: TVM 0.17.dev0
Input: ``relay.tanh`` of float16, target cuda, with nvcc of CUDA 13.0
Upstream: none known
"""

from __future__ import annotations

import re

_DEFINED = re.compile(r"^CUDA_UNSUPPORTED_HALF_MATH_(?:UNARY|BINARY)\((\w+),", re.MULTILINE)
_PREFIX = "tvm_stitch_"


def own_half_functions(code: str) -> str:
    """Return the CUDA C with new names for these functions, where it defines and where it calls them."""
    names = [name for name in dict.fromkeys(_DEFINED.findall(code)) if not name.startswith(_PREFIX)]
    if not names:
        return code
    return re.sub(rf"\b({'|'.join(names)})\b", rf"{_PREFIX}\1", code)
