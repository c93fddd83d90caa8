# SPDX-License-Identifier: Apache-2.0
"""Decompose exported programs: PyTorch's decompositions, and those of this package for operators without one."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from ..operators.recurrent import kept_whole
from .attention import attention_decompositions
from .bessel import bessel_decompositions
from .counts import count_decompositions
from .fractional_pools import fractional_pool_decompositions
from .gammas import gamma_decompositions
from .images import image_decompositions
from .indexing import indexing_decompositions
from .loops import loop_decompositions
from .numeric import numeric_decompositions
from .regions import region_decompositions
from .scans import scan_decompositions
from .signal import signal_decompositions
from .special import special_decompositions
from .uniques import unique_decompositions

__all__ = ["decomposed", "decomposition_table"]

PYTORCHS_TOO = (
    "_upsample_nearest_exact1d.default _upsample_nearest_exact2d.default"
    " _upsample_nearest_exact3d.default addcdiv.default"
    " dist.default narrow_copy.default permute_copy.default"
    " unbind_copy.int upsample_trilinear3d.default view_copy.default"
    " _native_batch_norm_legit.default"
    " _native_batch_norm_legit_functional.default _batch_norm_with_update_functional.default renorm.default"
).split()
"""Operators that PyTorch knows how to decompose, but leaves in an exported program."""


CONVERTED = (
    torch.ops.aten.linspace.default,
    torch.ops.aten.logspace.default,
    torch.ops.aten.take.default,
    torch.ops.aten.col2im.default,
)
"""Operators with converters that PyTorch decomposes otherwise than it computes them, slower, or not at all.

Its decomposition of evenly spaced numbers rounds integers otherwise, and that of ``take`` reads a number at run time.
That of a fold is a scatter: 545 us of VOLO's 1,300 a block on an H200.
"""


def decomposed(program: Any) -> Any:
    """Return an exported program in PyTorch's core operators, as far as they are decomposed.

    Programs with sparse tensors are returned unchanged, as PyTorch decomposes none of them.

    Args:
        program: a ``torch.export.ExportedProgram``.
    """
    tensors = [*program.state_dict.values(), *program.constants.values()]
    if any(isinstance(each, torch.Tensor) and each.layout != torch.strided for each in tensors):
        return program
    return program.run_decompositions(decomposition_table())


@lru_cache(maxsize=1)
def _pytorchs(composite: int) -> dict[Any, Callable[..., Any]]:
    """Return PyTorch's decompositions for core operators.

    PyTorch asks for all registered operators whenever it makes the table, which takes 60 ms of one core.

    Args:
        composite: the number of registered operators that are composed of others. The table has them too.
    """
    return dict(torch.export.default_decompositions())


def decomposition_table() -> dict[Any, Callable[..., Any]]:
    """Return decompositions by PyTorch's overloads: PyTorch's own ones for core operators, and those added here.

    Recurrent layers are not decomposed, because PyTorch writes out each of their steps.
    """
    from torch._decomp import decomposition_table as known

    composite = torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")
    table = dict(_pytorchs(len(composite)))
    for name in PYTORCHS_TOO:
        packet, overload = name.split(".")
        operator = getattr(getattr(torch.ops.aten, packet), overload)
        if operator in known:
            table[operator] = known[operator]
    for own in (
        attention_decompositions(),
        bessel_decompositions(),
        count_decompositions(),
        fractional_pool_decompositions(),
        gamma_decompositions(),
        image_decompositions(),
        indexing_decompositions(),
        loop_decompositions(),
        numeric_decompositions(),
        region_decompositions(),
        scan_decompositions(),
        signal_decompositions(),
        special_decompositions(),
        unique_decompositions(),
    ):
        table.update(own)
    for operator in (*kept_whole(), *CONVERTED):
        table.pop(operator, None)
    return table
