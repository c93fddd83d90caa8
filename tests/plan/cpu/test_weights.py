# SPDX-License-Identifier: Apache-2.0
"""Vectors along rows of weights: the fields of words, chunks of a row, and the factors that rows share."""

from __future__ import annotations

from typing import Any, cast

import pytest
import tvm
from models.narrow_weights import KINDS, product

from tests.relax.few_rows.models import layer
from tvm_stitch.plan.cpu.tile import CpuMapping
from tvm_stitch.plan.cpu.weights import WeightLanes
from tvm_stitch.relax.pipeline import Recorder, pipeline
from tvm_stitch.support.cores import threads

AVX512 = tvm.target.Target({"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 4})
AVX2 = tvm.target.Target({"kind": "llvm", "mcpu": "haswell", "num-cores": 4})


def mapping(
    rows: int, columns: int, inner: int, bits: int, dtype: str = "float32", target: tvm.target.Target = AVX512
) -> CpuMapping:
    """Return the mapping of the kernel that computes a product between a norm and a residual."""
    return planned(layer(rows, columns, inner, bits, dtype), target)


def planned(mod: tvm.IRModule, target: tvm.target.Target = AVX512) -> CpuMapping:
    """Return the mapping of the kernel of a module that reads rows of weights."""
    recorder = Recorder()
    with target:
        pipeline(target, None, recorder)(mod)
    found = [cast(CpuMapping, plan.stage.mapping) for plan in recorder.plans.values()]
    (of_weights,) = [each for each in found if each.weights is not None]
    return of_weights


def of(mod: tvm.IRModule) -> WeightLanes:
    """Return the vectors of the kernel of a module that reads rows of weights."""
    found = planned(mod).weights
    assert found is not None
    return found


def lanes(*case: Any, target: tvm.target.Target = AVX512) -> WeightLanes:
    """Return the vectors of the kernel that computes a product."""
    found = mapping(*case, target=target).weights
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("case", "fields"),
    [
        ((1, 64, 256, 4), 4),  # a word holds eight fields, and four of them have one scale
        ((1, 64, 256, 8), 4),
        ((1, 512, 256, 0, "float16"), 1),
    ],
    ids=str,
)
def test_fields_are_the_columns_that_share_every_element(case: tuple[Any, ...], fields: int) -> None:
    assert lanes(*case).fields == fields


def test_chunks_cover_a_row_with_shorter_vectors_at_its_end() -> None:
    chunks = lanes(1, 60, 300, 8).chunks
    assert [(c.start, c.count, c.lanes) for c in chunks] == [
        (0, 2, 32),
        (256, 1, 8),
        (288, 1, 2),
        (296, 1, 1),
    ]
    assert sum(c.count * c.columns for c in chunks) == 300


def test_vectors_are_longer_where_registers_are() -> None:
    assert lanes(8, 512, 256, 0, "float16").lanes == 16
    assert lanes(8, 512, 256, 0, "float16", target=AVX2).lanes == 8


def test_a_scale_multiplies_the_sum_of_a_chunk_if_few_rows_share_it() -> None:
    assert lanes(1, 64, 256, 4).scaled_once
    assert not lanes(8, 64, 256, 4).scaled_once  # scaled once for eight rows
    assert not lanes(1, 512, 256, 0, "float16").scaled_once


def test_one_float_row_is_read_as_it_lies() -> None:
    assert not of(product(KINDS["int8"], 1, 64, 256)).prepared
    assert len(of(product(KINDS["4bit-bytes"], 1, 64, 256)).prepared) == 1  # in the order of the fields
    assert len(lanes(1, 512, 256, 0, "float16").prepared) == 1  # widened
    assert len(of(product(KINDS["int8"], 4, 64, 256)).prepared) == 4  # side by side, in one stream


def test_long_rows_of_a_product_are_walked_in_blocks() -> None:
    found = mapping(16, 4096, 2048, 8)
    assert found.weights is not None and found.weights.block
    assert 4 * 16 * found.weights.block * found.weights.chunks[0].columns <= 24 * 1024
    assert found.rows_per_task <= 64  # their partial sums wait in a cache
    assert not lanes(16, 4096, 256, 8).block
    assert not lanes(1, 4096, 8192, 8).block


def test_each_core_takes_neighbouring_rows() -> None:
    found = mapping(1, 4096, 1024, 4)
    assert found.parallel and found.rows_per_task == -(-1024 // (4 * threads()))
    assert not mapping(1, 64, 256, 4).parallel


def test_explain_names_the_vectors() -> None:
    assert mapping(1, 64, 256, 4).describe()["weights"] == "4 fields of 1 x 32 lanes, scaled once a chunk"


def test_weights_of_float32_and_small_ones_are_left_to_templates() -> None:
    for dtype, columns in (("float32", 4096), ("float16", 64)):
        recorder = Recorder()
        with AVX512:
            pipeline(AVX512, None, recorder)(layer(1, columns, 256, 0, dtype))
        assert "our template" in str(recorder.computed)
