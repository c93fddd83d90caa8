# SPDX-License-Identifier: Apache-2.0
"""Equal layers of a decoder are calls of the same kernels: code does not grow with their number."""

from __future__ import annotations

from models.decoder_step import Decoder, as_relax

import tvm_stitch.relax
from cuda_emulator import lower
from stitch_testing.random.graphs import emulated_target


def source(layers: int) -> str:
    """Return the CUDA C of a step."""
    decoder = Decoder(layers, hidden=256, heads=4, key_heads=2, inner=512, cache=64, words=320)
    target = emulated_target()
    return lower(as_relax(decoder), target, tvm_stitch.relax.pipeline(target)).source


def test_code_does_not_grow_with_the_number_of_layers() -> None:
    assert len(source(6)) < 1.1 * len(source(2))
