# SPDX-License-Identifier: Apache-2.0
"""Decide which convolutions of a Relax module the CPU templates compute."""

from __future__ import annotations

from tvm import relax

from ...compute.anchored import are_served
from ...graph.extent import is_static
from .views import shape_of


def suits_templates(call: relax.Call, _read_last: bool) -> bool:
    """Return True if a template may compute a convolution: it takes the dtypes, and images have static sizes."""
    data, weight = call.args
    if not are_served(*(str(ty.dtype) for ty in (data.ty, weight.ty, call.ty))):
        return False
    shapes = [shape_of(data), shape_of(call)]
    return all(shape is not None and is_static(shape[1:]) for shape in shapes)
