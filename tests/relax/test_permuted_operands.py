# SPDX-License-Identifier: Apache-2.0
"""Products whose operands the graph transposes read them as they lie, at every extent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build, symbol
from tests.relax.stitch.test_compute_templates import TARGETS, check, draw, run, target
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.relax import pipeline

F32 = "float32"
SIDES = [(True, False), (False, True), (True, True)]


def swap(emit: Any, x: Any, rank: int) -> Any:
    return emit(R.permute_dims(x, [*range(rank - 2), rank - 1, rank - 2]))


def product(x_shape: tuple[Any, ...], w_shape: tuple[Any, ...], left: bool, right: bool) -> Any:
    """Multiply two parameters, which the graph transposes."""

    def body(emit: Any, x: Any, w: Any) -> list[Any]:
        x = swap(emit, x, len(x_shape)) if left else x
        w = swap(emit, w, len(w_shape)) if right else w
        return [R.matmul(x, w)]

    return build(body, (x_shape, F32), (w_shape, F32))


def stored(shape: tuple[int, ...], transposed: bool) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1], shape[-2]) if transposed else shape


def as_read(array: np.ndarray, transposed: bool) -> np.ndarray:
    return array.swapaxes(-1, -2) if transposed else array


SIZES = [
    (1, 1, 1),
    (1, 300, 33),
    (7, 5, 3),
    (8, 256, 32),
    (13, 17, 19),
    (64, 131, 100),
    (129, 130, 37),
    (5, 0, 4),
    (0, 9, 4),
    (4, 9, 0),
]


@pytest.mark.parametrize("cpu", TARGETS)
@pytest.mark.parametrize(("left", "right"), SIDES)
@pytest.mark.parametrize(("m", "k", "n"), SIZES)
def test_matrices(m: int, k: int, n: int, left: bool, right: bool, cpu: str) -> None:
    x, w = draw(*stored((m, k), left)), draw(*stored((k, n), right))
    mod = product(x.shape, w.shape, left, right)
    result, computed = run(mod, target(cpu), x, w)
    check(result, as_read(x, left), as_read(w, right))
    if m * k * n:
        assert [how.split(":")[0] for how in computed.values()] == ["our template"]
        assert count_kernels(mod, target(cpu), pipeline(target(cpu))).total == 1


@pytest.mark.parametrize(("left", "right"), SIDES)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("outer", [(3,), (2, 3), (1, 2)])
def test_batches(outer: tuple[int, ...], shared: bool, left: bool, right: bool) -> None:
    """Of matrices, or with one weight: rows of a transposed left side lie behind each other within a batch only."""
    x = draw(*stored((*outer, 17, 40), left))
    w = draw(*stored((40, 21) if shared else (*outer, 40, 21), right))
    mod = product(x.shape, w.shape, left, right)
    result, computed = run(mod, target("avx2"), x, w)
    check(result, as_read(x, left), as_read(w, right))
    assert [how.split(":")[0] for how in computed.values()] == ["our template"]


@pytest.mark.parametrize("size", [0, 1, 5, 37])
@pytest.mark.parametrize(("left", "right"), SIDES)
def test_symbolic_extents(left: bool, right: bool, size: int) -> None:
    b, n = symbol("b"), symbol("n")
    mod = product((b, *stored((n, 24), left)), stored((24, 11), right), left, right)
    x, w = draw(2, *stored((size, 24), left)), draw(*stored((24, 11), right))
    check(run(mod, target("avx2"), x, w)[0], as_read(x, left), as_read(w, right))
    mod = product(stored((9, n), left), stored((n, b), right), left, right)
    x, w = draw(*stored((9, 7 * size), left)), draw(*stored((7 * size, size), right))
    check(run(mod, target("avx2"), x, w)[0], as_read(x, left), as_read(w, right))


@pytest.mark.parametrize("left", [False, True])
def test_long_sums_are_sums_of_shorter_ones(left: bool) -> None:
    """Ones of float32 that are added one by one to a large number get lost."""
    depth = 9000
    x, w = np.ones(stored((3, depth), left), F32), np.full((5, depth), 2.0**-24, F32)
    w[:, 0] = 1
    result, _ = run(product(x.shape, w.shape, left, True), target("avx2"), x, w)
    wide = as_read(x, left).astype("float64") @ w.T
    assert (np.abs(result - wide) <= 256 * 2.0**-24 + 2.0**-24 * 8).all()


@pytest.mark.parametrize("size", [1, 8, 50])
def test_a_linear_layer_whose_weight_is_a_parameter(size: int) -> None:
    """As `tvm.relax.frontend.nn` writes it, with what follows in the same kernel."""
    bias = draw(48)

    def body(emit: Any, x: Any, w: Any) -> list[Any]:
        y = emit(R.matmul(x, emit(R.permute_dims(w))))
        return [R.nn.gelu(emit(R.add(y, relax.const(bias))))]

    x, w = draw(2, size, 256), draw(48, 256)
    mod = build(body, (x.shape, F32), (w.shape, F32))
    result, computed = run(mod, target("avx2"), x, w)
    wide = x.astype("float64") @ w.astype("float64").T + bias
    gelu = build(lambda emit, y: [R.nn.gelu(y)], (wide.shape, F32))
    np.testing.assert_allclose(result, run(gelu, target("avx2"), wide.astype(F32))[0], rtol=1e-4, atol=1e-4)
    assert count_kernels(mod, target("avx2"), pipeline(target("avx2"))).total == 1
    assert "as it lies" in "".join(computed.values())


def test_a_constant_weight_is_packed_still() -> None:
    w = draw(40, 30)

    def body(emit: Any, x: Any) -> list[Any]:
        return [R.matmul(swap(emit, x, 3), relax.const(w))]

    x = draw(2, 40, 9)
    result, computed = run(build(body, (x.shape, F32)), target("avx2"), x)
    check(result, x.swapaxes(1, 2), w)
    assert "weight packed" in "".join(computed.values())


def test_a_matrix_times_itself() -> None:
    def body(emit: Any, x: Any) -> list[Any]:
        return [R.matmul(swap(emit, x, 2), x)]

    x = draw(20, 9)
    mod = build(body, (x.shape, F32))
    result, computed = run(mod, target("avx2"), x)
    check(result, x.T, x)
    assert [how.split(":")[0] for how in computed.values()] == ["our template"]


def test_other_permutations_stay_kernels_of_their_own() -> None:
    """No template reads a left side whose outer axes change places. The product is not left to TVM for it."""

    def body(emit: Any, x: Any, w: Any) -> list[Any]:
        return [R.matmul(emit(R.permute_dims(x, [1, 0, 2])), w)]

    x, w = draw(5, 3, 16), draw(16, 8)
    mod = build(body, (x.shape, F32), (w.shape, F32))
    result, computed = run(mod, target("avx2"), x, w)
    check(result, x.transpose(1, 0, 2), w)
    assert [how.split(":")[0] for how in computed.values()] == ["our template"]
    counted = count_kernels(mod, target("avx2"), pipeline(target("avx2")))
    assert (counted.total, counted.memory_intensive) == (2, 1)


SHARED_LEFT = [
    ((64, 16), (3, 16, 5)),
    ((7, 40), (2, 3, 40, 21)),
    ((48,), (3, 48, 8)),
    ((3, 17, 100), (100,)),
    ((2, 3, 17, 48), (48,)),
    ((1, 8, 16), (3, 16, 5)),
]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("left", "right"), SHARED_LEFT)
def test_a_left_side_that_batches_share(
    left: tuple[int, ...], right: tuple[int, ...], transposed: bool, dtype: str
) -> None:
    if transposed and len(left) < 2:
        pytest.skip("of one axis")
    x, w = draw(*stored(left, transposed)).astype(dtype), draw(*right).astype(dtype)

    def body(emit: Any, x: Any, w: Any) -> list[Any]:
        return [R.matmul(swap(emit, x, len(left)) if transposed else x, w)]

    mod = build(body, (x.shape, dtype), (w.shape, dtype))
    result, computed = run(mod, target("avx2"), x, w)
    wide = as_read(x, transposed).astype("float64") @ w.astype("float64")
    bound = np.abs(as_read(x, transposed)).astype("float64") @ np.abs(w).astype("float64")
    rounding = 0.0 if dtype == "float32" else 2.0**-11
    assert result.shape == wide.shape
    assert (np.abs(result - wide) <= 1e-6 * bound + rounding * np.abs(wide) + 1e-7).all()
    assert [how.split(":")[0] for how in computed.values()] == ["our template"]
