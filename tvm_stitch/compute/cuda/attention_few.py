# SPDX-License-Identifier: Apache-2.0
"""Attention of few queries on a CUDA device: one kernel that reads keys and values once, split over many blocks.

The kernel of ``attention.py`` gives a block 64 queries. One token of a decoder has one query for each head, and several
heads that share keys. The kernels of this file take all queries of these heads together. Few are multiplied by lanes
(``attention_few.cuh``), and more of a half type by matrix units (``attention_few_units.cuh``).
The blocks of a cluster share the keys, and join their sums through shared memory. So one launch is enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from ...codegen import builder as B
from ...codegen.gpu.dependent_launch import launch_attributes, wait_for_kernels_in_front
from ...codegen.gpu.launch_bounds import bound_registers
from ...compat import PrimFunc, T, Var, tir
from ...device import DeviceModel
from ...graph.dtype import HALF
from ...graph.extent import Extent, as_expr, is_number, product
from ...repairs.tir.opaque import as_c_type
from ...repairs.tir.zero_divisors import is_positive
from ...support.failures import Refusal
from ..attention import Attention
from ..cpu.emit import compute_func
from .attention import check_types, is_aligned, kernel_call, pointer_to

LARGEST_HEAD = 256
"""Most elements of a head."""

CLUSTERS = (8, 4, 2)
"""Numbers of blocks that may share the keys of a head."""

LARGEST_UNITS_HEAD = 128
"""The same on matrix units, whose lanes have the sums of a whole row."""

_TILE = 16
_RESIDENT = 2
"""Blocks for which a multiprocessor has registers."""


@dataclass(frozen=True)
class FewQueries:
    """The division of queries and keys among blocks.

    Attributes:
        group: heads that share keys, whose queries a block takes together.
        rows: queries of a block: at most 4, or on matrix units 16 or 32.
        tiles: blocks for the queries of a group.
        blocks: blocks of a cluster, which share the keys.
        units: whether matrix units multiply.
        warps: warps of a block.
    """

    group: int
    rows: int
    tiles: int
    blocks: int
    units: bool = False
    warps: int = 4

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps


def few_queries(attention: Attention, device: DeviceModel, is_fallback: bool = False) -> FewQueries:
    """Return how the kernel divides attention.

    Args:
        attention: the computation.
        device: the GPU that the kernel is for.
        is_fallback: whether any number of queries is allowed, because nothing else computes the attention.

    Raises:
        Refusal: if the number of queries is symbolic or too large for the kernel, or if a device without clusters has
            too few heads.
    """
    group, queries = _group(attention), attention.queries
    if not isinstance(queries, int):
        raise Refusal("its number of queries is symbolic")
    choices = device.choices
    is_long = not isinstance(attention.keys, int) or attention.keys >= choices.attention_long_keys
    by_lanes = choices.attention_lanes_long_queries if is_long else choices.attention_lanes_queries
    units = group * queries > by_lanes and _for_units(attention)
    most = choices.attention_units_queries if units else choices.attention_few_queries
    if not is_fallback and not 0 < group * queries <= most:
        raise Refusal(f"{group * queries} queries of heads that share keys: the kernel takes few")
    rows = min(4, 1 << (group * queries - 1).bit_length())
    if units:
        rows = _TILE * (2 if group * queries > _TILE and attention.size <= LARGEST_UNITS_HEAD // 2 else 1)
    tiles = -(-group * queries // rows)
    cells = tiles
    for extent in _cells(attention, group):
        cells *= extent if isinstance(extent, int) else 1
    if device.max_cluster < min(CLUSTERS) and cells < device.sms and not is_fallback:
        raise Refusal(f"blocks for {cells} heads alone leave a device without clusters idle")
    most = min(device.max_cluster, _RESIDENT * device.sms // max(1, cells))
    keys = attention.keys // choices.attention_few_keys if isinstance(attention.keys, int) else most
    blocks = next((n for n in CLUSTERS if n <= min(most, keys)), 1)
    few = FewQueries(group, rows, tiles, blocks, units)
    return replace(few, warps=_warps(attention, device, few))


def _warps(attention: Attention, device: DeviceModel, few: FewQueries) -> int:
    """Return the warps of a block: as many as read its keys at once, if it has a multiprocessor alone."""
    launched = product([*_cells(attention, few.group), few.tiles, few.blocks])
    if not isinstance(launched, int) or launched > device.sms:
        return few.warps
    if not isinstance(attention.keys, int):
        return device.choices.attention_few_units_warps
    # On matrix units, threads with two tiles, or two parts of a head, need the registers of twice as many.
    is_wide = few.units and (few.rows > _TILE or attention.size > LARGEST_UNITS_HEAD // 2)
    most = device.choices.attention_few_units_warps if is_wide else device.choices.attention_few_warps
    lanes = -(-attention.size // _vector(attention))
    keys_of_warp = _TILE if few.units else 4 * device.warp // lanes
    warps = few.warps
    while warps < most and few.blocks * warps * keys_of_warp < attention.keys:
        warps *= 2
    return warps


def _cells(attention: Attention, group: int) -> tuple[Extent, ...]:
    """Return the extents of the heads that have keys of their own."""
    return attention.leading[: 2 if group > 1 else 3]


def _for_units(attention: Attention) -> bool:
    """Return whether matrix units take the types and the size of the heads, and vectors of rows lie evenly.

    They round the weights of v to its type.
    """
    rounded = attention.q.dtype in HALF and not attention.wide_weights
    return rounded and attention.size <= LARGEST_UNITS_HEAD and is_aligned(attention)


def splits_keys(attention: Attention, device: DeviceModel) -> bool:
    """Return whether heads are too few to fill the device, so that several blocks are to share the keys of each."""
    try:
        few = few_queries(attention, device)
    except Refusal:
        return False
    cells = product([*_cells(attention, few.group), few.tiles])
    return few.blocks > 1 and isinstance(cells, int) and 2 * cells <= device.sms


def check(attention: Attention, device: DeviceModel, is_fallback: bool = False) -> None:
    """Raise a Refusal unless the kernel supports this attention. ``is_fallback``: as for :func:`few_queries`."""
    check_types(attention, LARGEST_HEAD)
    few_queries(attention, device, is_fallback)


def cuda_attention_few(
    attention: Attention, numbers: Sequence[Var], device: DeviceModel, is_fallback: bool = False
) -> PrimFunc:
    """Return the scheduled PrimFunc. Its parameters are the inputs, ``numbers`` and the result.

    Args:
        attention: the computation.
        numbers: symbols that no operand's shape gives.
        device: the GPU that the kernel is for.
        is_fallback: as for :func:`few_queries`.

    Raises:
        Refusal: as :func:`check` does.
    """
    check(attention, device, is_fallback)
    few = few_queries(attention, device, is_fallback)
    buffers = [operand.declared(name) for operand, name in zip(attention.inputs, "qkvm")]
    out = attention.out.declared("out")
    problems = as_expr(product([*_cells(attention, few.group), few.tiles]))
    # A cluster is launched even if there is no problem. It does nothing.
    launched = problems if is_positive(problems) else tir.Max(problems, B.i64(1))
    with B.kernel() as body, ExitStack() as stack:
        stack.enter_context(T.launch_thread("blockIdx.x", launched * B.i64(few.blocks)))
        if few.blocks > 1:
            stack.enter_context(T.launch_thread("clusterCtaIdx.x", B.i64(few.blocks)))
        stack.enter_context(T.launch_thread("threadIdx.x", B.i64(few.threads)))
        bound_registers(stack, max(1, _RESIDENT * FewQueries.warps // few.warps))
        shared = B.local([_shared_floats(attention, few)], "float32", "shared", "shared.dyn")
        pointers = [pointer_to(b, o) for b, o in zip(buffers, attention.inputs)]
        means = f"Few<Of, {few.rows}, {few.group}, {few.blocks}, {few.warps}>"
        if few.units:
            means = f"FewOnUnits<Of, {few.rows // _TILE}, {few.group}, {few.blocks}, {few.warps}>"
        masked = 0
        if attention.mask is not None:
            strides = attention.mask.strides
            common = is_number(strides[3], 0) and (few.group == 1 or is_number(strides[2], 0))
            masked = 1 if common else 2
        call = kernel_call(
            attention,
            "attention_few_units" if few.units else "attention_few",
            means,
            1,
            masked,
            shared.data,
            pointers,
            pointer_to(out, attention.out),
        )
        wait_for_kernels_in_front(device)
        with B.when(None if is_positive(problems) else as_c_type(problems, "int64") > 0):
            B.evaluate(call)
    func = compute_func([*buffers, *numbers, out], body[0])
    return func.with_attrs(launch_attributes(device, False))


def _group(attention: Attention) -> int:
    """Return the number of heads that share keys and values."""
    heads = attention.leading[2]
    shared = all(is_number(operand.strides[2], 0) for operand in (attention.k, attention.v))
    return heads if shared and isinstance(heads, int) else 1


def _shared_floats(attention: Attention, few: FewQueries) -> int:
    """Return the floats of shared memory of a block: the lines of its warps, and what its cluster puts into it.

    A line has sums, a score and a total. A block gets sums of the results that it stores, and those two of each row.
    """
    wide = 1 << max(attention.size - 1, _vector(attention) - 1).bit_length()
    if few.units:
        wide = -(-attention.size // 64) * 64
    lines = few.warps * few.rows * (wide + 2)
    if few.blocks == 1:
        return lines
    owned = -(-few.rows * wide // (few.threads * few.blocks)) * few.threads
    return lines + few.blocks * (owned + 2 * few.rows)


def _vector(attention: Attention) -> int:
    """Return the elements of a row that a lane has."""
    each = 4 if attention.q.dtype == "float32" else 8
    return each * (2 if attention.size > 32 * each else 1)
