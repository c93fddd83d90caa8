# SPDX-License-Identifier: Apache-2.0
"""Attention of half types by cuDNN: its operands as the library describes them, and the call.

cuDNN knows batches and heads, and heads of queries that share heads of keys. The three leading axes of attention
become these two. The call (``native/cudnn_attention.cc``) also takes this package's kernel. For static shapes it
measures both at the first call, and keeps the choice in a file, as the other libraries' calls do. It runs the kernel
if cuDNN is missing or refuses the graph. A shape that comes up first while a CUDA graph is captured runs it too.

cuDNN compiles a kernel for each shape, which takes 0.3 to 1 s. Of symbolic shapes only long ones are left to it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...cost.choices import Choices
from ...graph.dtype import HALF
from ...graph.extent import Extent, is_number, is_static, product, same
from ...support.failures import Refusal
from ..attention import Attention, Operand
from .attention import LARGEST_HEAD as LARGEST_OWN_HEAD
from .attention import is_aligned

LARGEST_HEAD = 256
"""Most elements of a head for cuDNN 9, on devices of ``FIRST_FOR_WIDE_HEADS`` and later."""

FIRST_FOR_WIDE_HEADS = 90
"""Ten times the least compute capability for heads of more elements than this package's kernel takes."""


@dataclass(frozen=True)
class LibraryAttention:
    """The arguments of a call of the library, in addition to tensors and the kernel.

    Attributes:
        numbers: batches, heads, heads of keys, queries, keys, elements of a head, and the offset of the last key that
            a query sees. Four numbers of q, k, v, the result and the mask follow. They are the offset of the first
            row, and the distances of batches, heads and rows, in elements.
        mode: words, as ``native/cudnn_attention.cc`` describes them.
        workspace: bytes of the workspace.
    """

    numbers: tuple[Extent, ...]
    mode: str
    workspace: int


@dataclass(frozen=True)
class _Axes:
    """The leading axes as batches and heads. An axis of the library is one axis, several merged ones, or none."""

    batch: tuple[int, ...]
    heads: tuple[int, ...]
    key_heads: tuple[int, ...]


def library_attention(attention: Attention, capability: int, choices: Choices) -> LibraryAttention:
    """Return the call that lets cuDNN compute attention.

    Args:
        attention: the computation.
        capability: ten times the compute capability of the device.
        choices: the constants of choice of the device.

    Raises:
        Refusal: if cuDNN does not take it, or if this package's kernel is known to be faster.
    """
    a = attention
    dtypes = {operand.dtype for operand in (a.q, a.k, a.v, a.out)}
    if len(dtypes) > 1 or not dtypes <= set(HALF):
        raise Refusal("cuDNN computes attention of one half type")
    if a.size > (LARGEST_HEAD if capability >= FIRST_FOR_WIDE_HEADS else LARGEST_OWN_HEAD):
        raise Refusal(f"heads of {a.size} elements")
    if not is_aligned(a):
        raise Refusal("rows do not provably begin at multiples of 16 bytes")
    if isinstance(a.keys, int) and a.keys < choices.attention_library_fewest_keys:
        raise Refusal("its keys are few")
    if a.mask is not None:
        _check_mask(a, a.mask)
    axes = _axes(a)
    numbers: list[Extent] = [product(a.leading[i] for i in group) for group in (axes.batch, axes.heads)]
    numbers += [product(a.leading[i] for i in axes.key_heads)]
    numbers += [a.queries, a.keys, a.size, 0 if a.causal is None else a.causal]
    rows = (a.queries, a.keys, a.keys, a.queries)
    for operand, count, heads in zip(
        (a.q, a.k, a.v, a.out), rows, (axes.heads, axes.key_heads, axes.key_heads, axes.heads)
    ):
        numbers += _rows(a, operand, count, axes.batch, heads)
    if a.mask is not None:
        numbers += [a.mask.offset, *(_stride(a.mask, group) for group in (axes.batch, axes.heads))]
        numbers += [a.mask.strides[3]]
    words = ["causal"] if a.causal is not None else []
    words += ["masked"] if a.mask is not None else []
    words += ["timed"] if is_static(numbers) else []
    words += [f"scale={a.scale.hex()}", f"fewest_keys={choices.attention_library_fewest_symbolic_keys}"]
    return LibraryAttention(tuple(numbers), " ".join(words), choices.attention_workspace_bytes)


def _check_mask(attention: Attention, mask: Operand) -> None:
    if not attention.safe:
        raise Refusal("a query that sees no key has the result NaN here, and 0 by cuDNN")
    if not is_number(mask.strides[4], 1):
        raise Refusal("the columns of its mask are not adjacent in memory")


def _axes(attention: Attention) -> _Axes:
    """Return the leading axes as the library's two.

    Raises:
        Refusal: if an operand does not lie evenly enough.
    """
    a = attention
    axes = [i for i, extent in enumerate(a.leading) if not is_number(extent, 1)]
    shared = [i for i in axes if is_number(a.k.strides[i], 0) and is_number(a.v.strides[i], 0)]
    if shared and (len(shared) > 1 or shared[0] != axes[-1]):
        raise Refusal("its heads share keys in another way than cuDNN's")
    for candidate in _candidates(axes, bool(shared)):
        if _fits(a, candidate):
            return candidate
    raise Refusal("an operand's leading axes are not two axes of cuDNN's")


def _candidates(axes: list[int], is_shared: bool) -> list[_Axes]:
    """Return the possible divisions of the leading axes that are not 1."""
    *before, last = axes or [2]
    if not is_shared:
        ways = [_Axes(tuple(before), (last,), (last,))]
        ways += [_Axes((before[0],), (before[1], last), (before[1], last))] if len(before) == 2 else []
        return ways
    own = _Axes(tuple(before), (last,), ())  # a batch for each head of keys
    joined = [_Axes(tuple(before[:-1]), (before[-1], last), (before[-1],))] if before else []
    return [*joined, own]


def _fits(attention: Attention, axes: _Axes) -> bool:
    """Return whether all operands lie evenly along merged axes."""
    a = attention
    keys = [(operand, group) for operand in (a.k, a.v) for group in (axes.batch, axes.key_heads)]
    queries = [(operand, group) for operand in (a.q, a.out) for group in (axes.batch, axes.heads)]
    for operand, group in (*keys, *queries):
        if any(is_number(operand.strides[i], 0) for i in group) or not _is_even(a, operand, group):
            return False
    masks = [] if a.mask is None else [(a.mask, group) for group in (axes.batch, axes.heads)]
    return all(_is_even(a, operand, group) for operand, group in masks)


def _is_even(attention: Attention, operand: Operand, group: tuple[int, ...]) -> bool:
    """Return whether an operand's distances along axes are those of one axis."""
    return all(
        same(operand.strides[outer], product([attention.leading[inner], operand.strides[inner]]))
        for outer, inner in zip(group, group[1:])
    )


def _stride(operand: Operand, group: tuple[int, ...]) -> Extent:
    return operand.strides[group[-1]] if group else 0


def _rows(
    attention: Attention, operand: Operand, count: Extent, batch: tuple[int, ...], heads: tuple[int, ...]
) -> list[Extent]:
    """Return the offset and distances of an operand. An axis that it lacks has the distance of all its rows."""
    whole = product([count, operand.strides[3]])
    head = _stride(operand, heads) if heads else whole
    extent = product(attention.leading[i] for i in heads)
    outer = _stride(operand, batch) if batch else product([extent, head])
    return [operand.offset, outer, head, operand.strides[3]]
