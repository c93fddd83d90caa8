# SPDX-License-Identifier: Apache-2.0
"""Expressions of constants as arrays, and moves of elements that arrays and tensors share."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.relax.loops.modules import run
from tvm_stitch.relax.loops.arrays import Arrays, array_of

VALUES = np.arange(24, dtype="float32").reshape(6, 4)


def test_parts_sums_and_zeros_of_constants() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([6, 4], "float32"))
    with builder.function("main", [x]):
        parts = builder.emit(R.split(relax.const(VALUES), 3))
        second = builder.emit(relax.TupleGetItem(parts, 1))
        joined = builder.emit(R.concat([second, builder.emit(R.zeros([2, 4], "float32"))]))
        total = builder.emit(R.add(joined, joined))
        others = builder.emit(R.split(relax.const(VALUES), [1, 2], axis=1))
        last = builder.emit(relax.TupleGetItem(others, 2))
        given = builder.emit(R.concat([total, x]))
        wanted = np.concatenate([VALUES[2:4] * 2, np.zeros((2, 4))])
        found = array_of(total, builder.lookup_binding)
        assert found is not None and np.array_equal(found, wanted)
        found = array_of(last, builder.lookup_binding)
        assert found is not None and np.array_equal(found, VALUES[:, 2:])
        assert array_of(given, builder.lookup_binding) is None
        assert array_of(builder.emit(R.exp(total)), builder.lookup_binding) is None
        builder.emit_func_output(total)


@pytest.mark.parametrize("more", [0, 3])
def test_moves_of_tensors_are_those_of_arrays(more: int) -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([6, 4], "float32"))

    def moved(value: object) -> object:
        whole = arrays.padded(arrays.reshape(value, [2, 3, 4]), 1, more)
        return arrays.permute(whole, [2, 0, 1])

    with builder.function("main", [x]):
        arrays = Arrays(builder.emit)
        result = moved(x)
        builder.emit_func_output(result)
    executable = tvm.compile(builder.get(), "llvm")
    (found,) = run(executable, [tvm.runtime.tensor(VALUES)])
    wanted = moved(VALUES)
    assert isinstance(wanted, np.ndarray) and np.array_equal(found.numpy(), wanted)
    assert np.array_equal(arrays.tensor(wanted).value.numpy(), wanted)
