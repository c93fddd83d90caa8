# SPDX-License-Identifier: Apache-2.0
"""Decide whether matrix units take the sums of a product of few rows, and share them out over warps.

A weight of 4 bits costs about six instructions if a lane converts it, scales it, and multiplies it by each row. At the
memory's speed a multiprocessor has two or three. Matrix units multiply and add up at no cost to the lanes. The
conversion to a half type is exact and takes two weights at once. The scale multiplies the sum of a group.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ... import compat
from ...device import DeviceModel
from ...graph.classify import without_casts
from ...graph.dtype import HALF, item_bytes
from ...graph.extent import ByExtent
from ...graph.ir import Operator, Tensor
from ..gpu.mapping import ColumnMapping, RowMapping
from ..gpu.occupancy import OPT_IN_BYTES
from ..iteration.alignment import Alignment, Key
from ..iteration.domain import At, Point
from ..iteration.loops import Leaf, LoopNest, RowLoop
from .factors import Unknown
from .fields import PackedWeight, alike, packed_weight
from .matrix_units import MatrixUnits
from .weights import VECTOR_BYTES, sums_of_products

Factor = Key | Leaf


def matrix_mapping(
    alignment: Alignment, sched: LoopNest, device: DeviceModel, block: int, blocks: int
) -> RowMapping | str:
    """Return a mapping of rows of weights to matrix units, or the reason why lanes multiply instead.

    Args:
        alignment: of the operators.
        sched: their passes.
        device: the device that the kernel is for.
        block: threads of a block.
        blocks: number of blocks that are resident at once.
    """
    sums = sums_of_products(alignment, sched)
    if sums is None:
        return ""
    if not device.matrix_units:
        return "the device has no matrix units for bfloat16"
    try:
        return _mapping(alignment, sched, sums, device, block, blocks)
    except Unknown as err:
        return str(err)


def _mapping(
    alignment: Alignment, sched: LoopNest, sums: RowLoop, device: DeviceModel, block: int, blocks: int
) -> RowMapping:
    columns, warps = int(sums.columns), block // device.warp
    if any(int(p.columns) == columns for p in sched.passes if p is not sums):
        raise Unknown("another pass has as many columns")
    if sums.cross_row or any(key in sched.kept_values for key in sums.values):
        raise Unknown("other passes need values of the product's columns")
    sides_of = {op: _sides(alignment, op, columns) for op in sums.reduces}
    factors = tuple(dict.fromkeys(factor for factor, _ in sides_of.values()))
    sides = list(dict.fromkeys(weight for _, weight in sides_of.values()))
    of = {both: op for op, both in sides_of.items()}
    if len(of) != len(sides_of) or len(of) != len(factors) * len(sides):
        raise Unknown("the sums are not those of all factors by all weights")
    dtypes = {_dtype(factor) for factor in factors}
    if len(dtypes) != 1 or not dtypes <= set(HALF):
        raise Unknown(f"factors of {', '.join(sorted(dtypes))}")
    (dtype,) = dtypes
    weights = [packed_weight(alignment, side, columns) for side in sides]
    if weights[0].bits == 16 and len(factors) < device.choices.matrix_dense_rows:
        raise Unknown("a row of factors by weights that are not packed")
    if any(w.bits == 16 and w.words.tensor.dtype != dtype for w in weights):
        raise Unknown(f"weights and factors of different types than {dtype}")
    products = list(_products(weights))
    width = len(products[0])
    results = tuple(
        tuple(
            tuple(of[factor, sides[i]] for i in range(p * width, (p + 1) * width))
            for p in range(len(products))
        )
        for factor in factors
    )
    lane_bytes = _lane_bytes(weights, columns, warps, device.choices.matrix_lane_bytes)
    tiles = -(-int(alignment.domain.rows) * width * len(products) // MatrixUnits.mma_rows)
    row_chunks = columns * weights[0].bits // (8 * MatrixUnits.row_lanes * lane_bytes)
    slices, chunks, steps = _shares(tiles, row_chunks, lane_bytes, warps, blocks, device)
    per_scale = 0
    if weights[0].scale is not None:
        per_scale = math.gcd(chunks, max(1, weights[0].group * row_chunks // columns))
    in_cache = int(device.choices.matrix_ahead_share * device.l2_bytes)
    ahead = in_cache // (blocks * warps * MatrixUnits.mma_rows * MatrixUnits.row_lanes * lane_bytes)
    units = MatrixUnits(
        sums,
        factors,
        dtype,
        tuple(map(tuple, products)),
        results,
        lane_bytes,
        slices,
        chunks,
        steps,
        per_scale,
        device.choices.matrix_factors,
        ahead,
    )
    if units.shared_bytes(warps) > device.shared_per_block - OPT_IN_BYTES:
        raise Unknown(f"{len(factors)} rows of {columns} factors exceed shared memory")
    threads = device.warp * slices // units.tile_rows
    spaces = [
        (sums.columns, ColumnMapping(MatrixUnits.octet, 1, -(-columns // (MatrixUnits.octet * threads))))
    ]
    spaces += [
        (p.columns, ColumnMapping(1, -(-int(p.columns) // threads))) for p in sched.passes if p is not sums
    ]
    return RowMapping(threads, block // threads, ByExtent(spaces), matrix=units)


def _sides(alignment: Alignment, op: Operator, columns: int) -> tuple[Factor, Factor]:
    """Return what a sum multiplies: the factor that all rows share, and the weight."""
    point = next(p for o, p in alignment.roots if o is op)
    accesses = alignment.children((op, point))
    value = without_casts(op.value)
    if compat.kind(value) != "Mul" or not all(compat.is_load(without_casts(v)) for v in (value.a, value.b)):
        raise Unknown("a sum adds up more than products of elements")
    own = set(alignment.graph.operators)
    shared: list[Factor] = []
    weights: list[Factor] = []
    for access, at in accesses:
        if at is None or access.guarded:
            raise Unknown("a factor is gathered")
        producer = access.tensor.producer
        side: Factor = (producer, at) if producer is not None and producer in own else (access.tensor, at)
        (weights if _depends_on_row(alignment, side) else shared).append(side)
    if len(shared) != 1 or len(weights) != 1:
        raise Unknown("rows share no factor of a sum")
    return shared[0], weights[0]


def _depends_on_row(alignment: Alignment, side: Factor) -> bool:
    """Return whether a value may differ between rows."""
    own = set(alignment.graph.operators)
    waiting, seen = [side], set()
    while waiting:
        first, point = waiting.pop()
        if (first, point) in seen:
            continue
        seen.add((first, point))
        if _of_row(alignment, point):
            return True
        if isinstance(first, Tensor) or first.is_reduce:
            continue
        for access, at in alignment.children((first, point)):
            if at is None:
                return True
            producer = access.tensor.producer
            waiting.append(
                (producer, at) if producer is not None and producer in own else (access.tensor, at)
            )
    return False


def _of_row(alignment: Alignment, point: Point) -> bool:
    if point.at is At.INDEX:
        return any(alignment.domain.row in compat.free_vars(i) for i in point.indices)
    return point.at in (At.FULL, At.ROW) and alignment.domain.rows != 1


def _dtype(factor: Factor) -> str:
    first = factor[0]
    return first.dtype if isinstance(first, Tensor) else first.output.dtype


def _products(weights: Sequence[PackedWeight]) -> Iterator[list[PackedWeight]]:
    """Yield the weights of each of one or two products, whose rows of weights are neighbours."""
    whole = list(weights)
    for products in ([whole], [whole[: len(whole) // 2], whole[len(whole) // 2 :]]):
        width = len(products[0])
        if MatrixUnits.mma_rows // 2 % width == 0 and all(_are_neighbours(each) for each in products if each):
            firsts = [each[0] for each in products]
            if not _are_of_one_form(firsts):
                raise Unknown("products of different weights")
            yield from products
            return
    raise Unknown(f"{len(whole)} rows of weights are no neighbours")


def _are_neighbours(weights: Sequence[PackedWeight]) -> bool:
    """Return whether weights are of one form, and lie evenly one after the other."""
    if not _are_of_one_form(weights):
        return False
    for places in zip(*((w.words, *w.places, *w.zero_places) for w in weights)):
        apart = places[1].base - places[0].base if len(places) > 1 else 0
        first = places[0]
        for i, place in enumerate(places):
            same = place.tensor is first.tensor and (place.stride, place.every) == (first.stride, first.every)
            if not same or place.base != first.base + i * apart:
                return False
    return True


def _are_of_one_form(weights: Sequence[PackedWeight]) -> bool:
    first = weights[0]
    for w in weights:
        if _form(w) != _form(first):
            return False
        if (w.scale is None, w.own_zero is None) != (first.scale is None, first.own_zero is None):
            return False
        if w.words.tensor is first.words.tensor:
            pairs = ((w.scale, first.scale), (w.own_zero, first.own_zero))
            if not all(alike(a, b) for a, b in pairs if a is not None and b is not None):
                return False
    return True


def _form(w: PackedWeight) -> tuple[object, ...]:
    return w.bits, w.signed, w.zero, w.words.every, w.group, len(w.places), w.zero_group, len(w.zero_places)


def _lane_bytes(weights: Sequence[PackedWeight], columns: int, warps: int, most: int) -> int:
    """Return the bytes of a row that a lane loads at once: aligned, of whole octets, and of one group or of two.

    Several warps are to be able to share a row, so that few rows keep all of a block busy.
    """
    first = weights[0]
    for size in (32, 16, 8, 4):
        own = 8 * size // first.bits
        chunk = MatrixUnits.row_lanes * own
        words = size // item_bytes(first.words.tensor.dtype)
        if size > most or (size > VECTOR_BYTES and columns < chunk * warps):
            continue
        whole = own % MatrixUnits.octet == 0 and columns % chunk == 0
        grouped = (
            first.scale is None or first.group % own == 0 or (first.group * 2 == own and size > VECTOR_BYTES)
        )
        grouped = grouped and (first.own_zero is None or first.zero_group % min(own, first.group) == 0)
        grouped = grouped and (first.scale is None or chunk % first.group == 0 or first.group % chunk == 0)
        even = words > 0 and all(n % words == 0 for w in weights for n in (w.words.base, w.words.stride))
        if whole and grouped and even:
            return size
    raise Unknown(
        f"{columns} columns in groups of {first.group} are no whole vectors of {first.bits}-bit weights"
    )


def _shares(
    tiles: int, row_chunks: int, lane_bytes: int, warps: int, blocks: int, device: DeviceModel
) -> tuple[int, int, int]:
    """Return the warps that share a tile, the chunks that a warp loads at once, and how often it does."""
    choices = device.choices

    def cost(slices: int) -> float:
        """Return the time, relative to that of the memory."""
        rounds = -(-tiles * slices // (warps * blocks))
        busy = rounds * -(-row_chunks // slices) * warps * blocks / (tiles * row_chunks)
        waits = choices.weight_warps_cost * (slices.bit_length() - 1)
        waits += choices.matrix_round_cost * (rounds - 1) if slices > 1 else 0.0
        return max(1.0, busy * choices.matrix_busy_share) + waits

    powers = [1 << n for n in range(warps.bit_length())]
    counts = [n for n in powers if warps % n == 0 and n <= max(1, row_chunks)]
    slices = min(counts, key=lambda n: (cost(n), n))
    own = -(-row_chunks // slices)
    of_lane = choices.matrix_bytes // (warps * device.warp)
    at_once = max(1, min(own, of_lane // (2 * lane_bytes)))
    # Without a rest, no load has a condition.
    at_once = next((n for n in range(at_once, at_once // 2, -1) if own % n == 0), at_once)
    steps = -(-own // at_once)
    return slices, -(-own // steps), steps
