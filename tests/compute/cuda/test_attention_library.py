# SPDX-License-Identifier: Apache-2.0
"""Attention is described to cuDNN as batches and heads wherever it lies so in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stitch_testing.workloads.attention import Case
from tests.compute.attention_modules import described
from tests.graph.helpers import symbol
from tvm_stitch.compute.attention import Attention, Operand
from tvm_stitch.compute.cuda.attention_library import library_attention
from tvm_stitch.cost.choices import Choices
from tvm_stitch.support.failures import Refusal

PLAIN = Case(2, 8, 512, 1024, 64)


def grouped(group_stride: int = 4 * 64) -> Attention:
    """Return two heads of keys for eight of queries: leading axes of batches, groups, and heads of a group."""
    a, row = described(PLAIN), 8 * 64
    keys = Operand((2, 1024, 2, 64), "float16", 0, (1024 * 128, 64, 0, 128))
    rows = (512 * row, group_stride, 64, row)
    q, out = replace(a.q, strides=rows), replace(a.out, strides=rows)
    return replace(a, leading=(2, 2, 4), q=q, k=keys, v=keys, out=out)


def shared_by_batches(operand: Operand) -> Operand:
    return replace(operand, strides=(0, 0, *operand.strides[2:]))


def numbers(attention: Attention, choices: Choices | None = None) -> list[Any]:
    return list(library_attention(attention, 90, choices or Choices()).numbers)


def test_batches_and_heads() -> None:
    found = library_attention(replace(described(PLAIN), causal=512), 90, Choices())
    q, k = [0, 512 * 512, 64, 512], [0, 1024 * 512, 64, 512]
    assert list(found.numbers) == [2, 8, 8, 512, 1024, 64, 512, *q, *k, *k, *q]
    assert found.mode.split() == [
        "causal",
        "timed",
        f"scale={PLAIN.scale.hex()}",
        "fewest_keys=4096",
    ]


def test_heads_that_share_keys() -> None:
    q, k = [0, 512 * 512, 64, 512], [0, 1024 * 128, 64, 128]
    assert numbers(grouped()) == [2, 8, 2, 512, 1024, 64, 0, *q, *k, *k, *q]


def test_heads_that_share_keys_of_one_batch() -> None:
    a = grouped()
    (q, k, v, out) = (
        replace(x, strides=(0, *x.strides[1:])) for x in (a.q, a.k, a.v, a.out)
    )  # fmt: skip
    found = numbers(replace(a, leading=(1, 2, 4), q=q, k=k, v=v, out=out))
    assert found[:3] == [1, 8, 2] and found[7:11] == [0, 8 * 64, 64, 512]


def test_one_head_of_keys() -> None:
    a = described(PLAIN)
    keys = Operand((2, 1024, 1, 64), "float16", 0, (0, 1024 * 64, 0, 64))
    found = numbers(replace(a, k=keys, v=keys))
    assert found[:3] == [2, 8, 1]
    assert found[11:15] == [0, 1024 * 64, 1024 * 64, 64]


def test_slices_of_one_product() -> None:
    a, row = described(Case(2, 8, 512, 512, 64)), 3 * 512
    parts = [Operand((2, 512, row), "float16", 512 * i, (0, 512 * row, 64, row)) for i in range(3)]
    found = numbers(replace(a, q=parts[0], k=parts[1], v=parts[2]))
    assert found[7:19] == [n for i in range(3) for n in (512 * i, 512 * row, 64, row)]


def test_three_axes_that_are_two() -> None:
    """Windows of images: the two axes before heads are one, or the last two are."""
    a = described(PLAIN)
    rows = (4 * 512 * 512, 512 * 512, 64, 512)
    keys = (4 * 1024 * 512, 1024 * 512, 64, 512)
    wide = replace(
        a,
        leading=(3, 4, 8),
        q=replace(a.q, strides=rows),
        out=replace(a.out, strides=rows),
        k=replace(a.k, strides=keys),
        v=replace(a.v, strides=keys),
    )
    assert numbers(wide)[:3] == [12, 8, 8]
    mask = Operand((4, 1, 512, 1024), "float16", 0, (0, 512 * 1024, 0, 1024, 1))
    with pytest.raises(Refusal, match="not two axes"):
        library_attention(replace(wide, mask=mask, safe=True), 90, Choices())


@pytest.mark.parametrize(
    ("strides", "wanted"),
    [((0, 512 * 1024, 0, 1024, 1), [0, 512 * 1024, 0, 1024]), ((0, 1024, 0, 0, 1), [0, 1024, 0, 0])],
)
def test_masks(strides: tuple[int, ...], wanted: list[int]) -> None:
    mask = Operand((2, 1, 512, 1024), "float32", 0, strides)
    found = library_attention(replace(described(PLAIN), mask=mask, safe=True), 90, Choices())
    assert list(found.numbers[-4:]) == wanted and "masked" in found.mode.split()


def test_symbolic_lengths_are_not_timed() -> None:
    n = symbol("n")
    found = library_attention(described(replace(PLAIN, queries=n, keys=n)), 90, Choices())
    assert "timed" not in found.mode.split() and found.numbers[3] is n


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda a: described(replace(PLAIN, dtype="float32")), "one half type"),
        (lambda a: replace(a, out=replace(a.out, dtype="float32")), "one half type"),
        (lambda a: described(replace(PLAIN, size=60)), "multiples of 16 bytes"),
        (lambda a: replace(a, q=replace(a.q, offset=4)), "multiples of 16 bytes"),
        (lambda a: described(replace(PLAIN, keys=255)), "keys are few"),
        (lambda a: grouped(8 * 64), "not two axes"),
        (lambda a: replace(a, k=shared_by_batches(a.k), v=shared_by_batches(a.v)), "share keys"),
        (lambda a: replace(a, safe=True, mask=Operand((512, 1), "float16", 0, (0, 0, 0, 1, 0))), "columns of its mask"),
        (lambda a: replace(a, mask=Operand((512, 1024), "float16", 0, (0, 0, 0, 1024, 1))), "sees no key"),
    ],
)  # fmt: skip
def test_refusals(change: Any, reason: str) -> None:
    with pytest.raises(Refusal, match=reason):
        library_attention(change(described(PLAIN)), 90, Choices())


def test_fewest_keys_is_a_choice() -> None:
    small = described(Case(2, 8, 64, 64, 64))
    assert numbers(small, replace(Choices(), attention_library_fewest_keys=64))[4] == 64


def test_wide_heads() -> None:
    wide = described(replace(PLAIN, size=256))
    assert numbers(wide)[5] == 256
    for attention, capability in ((wide, 80), (described(replace(PLAIN, size=264)), 90)):
        with pytest.raises(Refusal, match="heads of"):
            library_attention(attention, capability, Choices())
