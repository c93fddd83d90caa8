# SPDX-License-Identifier: Apache-2.0
"""Transpositions meet through reshapes, and move nothing together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.relax import op as R

from tests.choices import CHOICES
from tests.graph.helpers import build, draw, emulated, on_llvm, symbol
from tvm_stitch.relax.layout.permutations import PropagatePermutations
from tvm_stitch.relax.layout.permuted_reshapes import PermutedReshapes
from tvm_stitch.relax.rewriting.contents import contents_of
from tvm_stitch.relax.rewriting.views import shape_of

Emit = Callable[[Any], Any]
LAST, SECOND = [0, 2, 3, 1], [0, 3, 1, 2]


def transposed(body: Callable[..., Any], *specs: Any) -> list[tuple[Any, ...]]:
    """Return the shapes of transpositions behind both passes, which compute the same."""
    before = build(body, *specs)
    after = PropagatePermutations(CHOICES)(PermutedReshapes(CHOICES)(before))
    inputs = draw(specs)
    for mine, wanted in zip(on_llvm(after, *inputs), on_llvm(before, *inputs), strict=True):
        np.testing.assert_allclose(mine, wanted, 1e-6, 1e-6)
    return _transposed(after)


def _transposed(mod: tvm.IRModule) -> list[tuple[Any, ...]]:
    return [tuple(shape_of(call) or ()) for call in contents_of(mod["main"]).get("relax.permute_dims", ())]


def test_rows_become_an_image_with_channels_last() -> None:
    """The feed-forward network of PVT: rows of channels, an image for a convolution."""

    def body(emit: Emit, x: Any) -> Any:
        rows = emit(R.reshape(emit(R.nn.relu(x)), [2, 15, 8]))
        image = emit(R.reshape(emit(R.permute_dims(rows, [0, 2, 1])), [2, 8, 3, 5]))
        return R.exp(emit(R.permute_dims(image, LAST)))

    assert transposed(body, ((30, 8), "float32")) == []


def test_an_image_with_channels_last_becomes_rows() -> None:
    def body(emit: Emit, x: Any) -> Any:
        image = emit(R.permute_dims(emit(R.nn.relu(x)), SECOND))
        rows = emit(R.permute_dims(emit(R.reshape(image, [2, 8, 15])), [0, 2, 1]))
        return R.nn.softmax(rows)

    assert transposed(body, ((2, 3, 5, 8), "float32")) == []


def test_a_residual_between_images_and_rows() -> None:
    """DaViT's positional convolution: rows are an image for a sum, and rows again."""

    def body(emit: Emit, x: Any, convolved: Any) -> Any:
        image = emit(R.reshape(emit(R.permute_dims(x, [0, 2, 1])), [2, 8, 3, 5]))
        summed = emit(R.add(image, emit(R.permute_dims(emit(R.exp(convolved)), SECOND))))
        rows = emit(R.permute_dims(emit(R.reshape(summed, [2, 8, 15])), [0, 2, 1]))
        return R.nn.softmax(rows)

    assert transposed(body, ((2, 15, 8), "float32"), ((2, 3, 5, 8), "float32")) == []


def test_axes_of_extent_one_are_added_and_dropped() -> None:
    def body(emit: Emit, x: Any) -> Any:
        image = emit(R.expand_dims(emit(R.permute_dims(x, [0, 2, 1])), [2]))
        rows = emit(R.squeeze(emit(R.permute_dims(emit(R.exp(image)), LAST)), [1]))
        return R.nn.softmax(rows)

    assert transposed(body, ((2, 15, 8), "float32")) == []


def test_windows_stay() -> None:
    """A partition into windows moves elements, whatever is exchanged."""

    def body(emit: Emit, x: Any) -> Any:
        divided = emit(R.permute_dims(emit(R.reshape(x, [2, 2, 3, 2, 3, 8])), [0, 1, 3, 2, 4, 5]))
        return R.exp(emit(R.reshape(divided, [8, 9, 8])))

    assert transposed(body, ((2, 6, 6, 8), "float32")) == [(2, 2, 2, 3, 3, 8)]


def test_a_transposition_of_rows_alone_stays() -> None:
    """Nothing in front is transposed, so that the transposition meets nothing there."""

    def body(emit: Emit, x: Any) -> Any:
        rows = emit(R.reshape(emit(R.exp(x)), [2, 15, 8]))
        return R.nn.softmax(emit(R.permute_dims(rows, [0, 2, 1])))

    before = build(body, ((2, 3, 5, 8), "float32"))
    tvm.ir.assert_structural_equal(PermutedReshapes(CHOICES)(before), before)


@pytest.mark.parametrize("extents", [(15, 8), (3, 5, 8)])
def test_a_symbolic_batch(extents: tuple[int, ...]) -> None:
    def body(emit: Emit, x: Any) -> Any:
        n, *_, channels = shape_of(x) or ()
        rank = len(extents) + 1
        image = emit(R.permute_dims(x, [0, rank - 1, *range(1, rank - 1)]))
        other = [n, channels, 3, 5] if rank == 3 else [n, channels, 15]
        image = emit(R.exp(emit(R.reshape(image, other))))
        return R.permute_dims(image, [0, *range(2, len(other)), 1])

    mod = PropagatePermutations(CHOICES)(
        PermutedReshapes(CHOICES)(build(body, ((symbol(), *extents), "float32")))
    )
    assert _transposed(mod) == []


def test_two_transpositions_that_undo_each_other() -> None:
    """A reshape between them and their readers does not part them."""

    def body(emit: Emit, x: Any, y: Any) -> Any:
        image = emit(R.permute_dims(emit(R.permute_dims(x, [0, 3, 1, 2])), [0, 2, 3, 1]))
        return R.add(emit(R.reshape(image, [1, 8, 7, 8, 7, 64])), y)

    specs = ((1, 56, 56, 64), "float32"), ((1, 8, 7, 8, 7, 64), "float32")
    mod = PropagatePermutations(CHOICES)(PermutedReshapes(CHOICES)(build(body, *specs)))
    assert _transposed(mod) == []


def test_a_transposition_that_others_read_stays() -> None:
    def body(emit: Emit, x: Any) -> list[Any]:
        image = emit(R.permute_dims(x, [0, 2, 1]))
        return [R.nn.softmax(image), R.exp(emit(R.reshape(image, [2, 8, 3, 5])))]

    before = build(body, ((2, 15, 8), "float32"))
    tvm.ir.assert_structural_equal(PermutedReshapes(CHOICES)(before), before)


def windows_of_a_norm(emit: Emit, x: Any, convolved: Any, scale: Any, shift: Any) -> list[Any]:
    """Build the residual of DaViT's positional convolution, its norm, and the windows of the norm in a half type."""
    image = emit(R.reshape(emit(R.permute_dims(x, [0, 2, 1])), [2, 32, 4, 6]))
    convolved = emit(R.permute_dims(emit(R.astype(convolved, "float32")), SECOND))
    summed = emit(R.reshape(emit(R.add(emit(R.astype(image, "float32")), convolved)), [2, 32, 24]))
    rows = emit(R.astype(emit(R.permute_dims(summed, [0, 2, 1])), "float16"))
    normed = emit(R.nn.layer_norm(emit(R.astype(rows, "float32")), scale, shift, axes=[-1]))
    divided = emit(R.permute_dims(emit(R.reshape(normed, [2, 2, 2, 2, 3, 32])), [0, 1, 3, 2, 4, 5]))
    return [emit(R.astype(emit(R.reshape(divided, [48, 32])), "float16")), rows]


def test_windows_of_a_norm_in_the_emulator() -> None:
    half = "float16"
    specs = ((2, 24, 32), half), ((2, 4, 6, 32), half), ((32,), "float32"), ((32,), "float32")
    inputs = draw(specs)
    windows, rows = emulated(build(windows_of_a_norm, *specs), *inputs)
    x, convolved, scale, shift = (each.astype("float64") for each in inputs)
    summed = x + convolved.reshape(2, 24, 32)
    centred = summed - summed.mean(-1, keepdims=True)
    normed = centred / np.sqrt(summed.var(-1, keepdims=True) + 1e-5) * scale + shift
    divided = normed.reshape(2, 2, 2, 2, 3, 32).transpose(0, 1, 3, 2, 4, 5).reshape(48, 32)
    np.testing.assert_allclose(rows, summed, 2e-3, 2e-3)
    np.testing.assert_allclose(windows, divided, 4e-3, 4e-3)
