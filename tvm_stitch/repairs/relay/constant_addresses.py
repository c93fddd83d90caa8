# SPDX-License-Identifier: Apache-2.0
"""Write a constant that generated CUDA C reads from its bits without an address.

Fault: TVM reinterprets a constant's bits in CUDA C by the address of the integer, as in ``*(float *)(&(1))``. An
    integer has no address, and the compiler rejects the code.
Seen in: TVM 0.17.dev0
Input: ``T.reinterpret("float32", T.int32(1051372203))``, target cuda
Upstream: none known
"""

from __future__ import annotations

import re

_BITS = re.compile(r"\(\*\((float|double) \*\)\(&\((-?\d+)(?:LL)?\)\)\)")
_CONVERSIONS = {"float": "__int_as_float", "double": "__longlong_as_double"}


def without_constant_addresses(code: str) -> str:
    """Return the CUDA C with such constants as calls of CUDA's conversions."""
    return _BITS.sub(lambda match: f"{_CONVERSIONS[match[1]]}({match[2]})", code)
