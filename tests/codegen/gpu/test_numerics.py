# SPDX-License-Identifier: Apache-2.0
"""CUDA kernels through the emulator: shapes, ranks and dtypes against float64, without a single finding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

import tvm_stitch.relax
from cuda_emulator import run_cuda
from stitch_testing.random.graphs import emulated_target
from tests.choices import change_choices
from tests.graph.helpers import H200, build, check_emulated, draw, graph, symbol
from tvm_stitch.config import StitchConfig
from tvm_stitch.device import device_model
from tvm_stitch.plan.gpu.mapping import Storage
from tvm_stitch.plan.in_block import plan_in_block
from tvm_stitch.testing.workloads import cases

ONE_BLOCK = StitchConfig(clusters=False, grid_barriers=False)
"""A row stays in one block."""
Emit = Callable[[relax.Expr], relax.Expr]


def softmax(emit: Emit, x: Any, axis: Any = -1) -> Any:
    e = emit(R.exp(emit(R.subtract(x, emit(R.max(x, axis, True))))))
    return R.divide(e, emit(R.sum(e, axis, True)))


def softmax_of(shape: tuple[Any, ...], dtype: str = "float32", axis: Any = -1) -> tvm.IRModule:
    return build(lambda emit, x: softmax(emit, x, axis), (shape, dtype))


# Columns below, at and above every boundary of the mapping: one lane, a quarter warp, a warp, several chunks, a block.
COLUMNS = [1, 2, 3, 4, 7, 8, 31, 32, 33, 64, 127, 128, 251, 1000, 1024, 4097]


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("rows", [1, 7])
def test_softmax_of_any_row_length(rows: int, columns: int) -> None:
    check_emulated(softmax_of((rows, columns)), draw([((rows, columns), "float32")]))


@pytest.mark.parametrize(("rows", "columns"), [(300, 5), (300, 33), (1000, 1), (257, 16), (131, 64)])
def test_many_small_rows_share_a_block(rows: int, columns: int) -> None:
    done = check_emulated(softmax_of((rows, columns)), draw([((rows, columns), "float32")]))
    assert done.launches[0].grid[0] < rows


@pytest.mark.parametrize("columns", [8192, 16384, 12289, 40000])
def test_a_whole_block_works_on_a_long_row(columns: int) -> None:
    done = check_emulated(softmax_of((2, columns)), draw([((2, columns), "float32")]), config=ONE_BLOCK)
    assert done.launches[0].block[0] >= 512 and done.launches[0].grid[0] == 2


@pytest.mark.parametrize("columns", [50000, 50001, 56320, 59392, 65537, 70000])
def test_rows_beyond_the_registers(columns: int) -> None:
    mod = softmax_of((2, columns))
    assert plan_in_block(graph(mod), H200, ONE_BLOCK).stage.mapping.storage is not Storage.REGISTERS
    check_emulated(mod, draw([((2, columns), "float32")]), config=ONE_BLOCK)


@pytest.mark.parametrize("columns", [70000, 70001])
def test_rows_that_no_memory_on_chip_holds_are_read_again(columns: int) -> None:
    def body(emit: Emit, x: Any, y: Any) -> Any:
        return [softmax(emit, emit(R.add(x, y)))]

    specs = [((2, columns), "float32")] * 2
    mod = build(body, *specs)
    assert plan_in_block(graph(mod), H200, ONE_BLOCK).stage.mapping.storage is Storage.NOWHERE
    check_emulated(mod, draw(specs), config=ONE_BLOCK)


@pytest.mark.parametrize("blocks", [(1, 256), (4, 256), (8, 512)])
@pytest.mark.parametrize(("columns", "dtype"), [(30_000, "bfloat16"), (25_001, "float16")])
def test_rows_are_read_again_from_the_cache(
    monkeypatch: pytest.MonkeyPatch, blocks: tuple[int, int], columns: int, dtype: str
) -> None:
    """By one block or a cluster of them, which two multiprocessors have work enough for."""
    change_choices(monkeypatch, async_copy_columns=1 << 20)
    change_choices(monkeypatch, cached_blocks=(blocks,))
    change_choices(monkeypatch, fewer_blocks_gain=10.0)
    config = StitchConfig(multiprocessors=2)
    device = device_model(emulated_target(), config)

    def body(emit: Emit, x: Any, y: Any) -> Any:
        return [softmax(emit, emit(R.add(x, y)))]

    specs = [((3, columns), dtype)] * 2
    mod = build(body, *specs)
    m = plan_in_block(graph(mod), device, config).stage.mapping
    assert m.storage is Storage.CACHE and (m.row_splits, m.threads) == blocks
    done = check_emulated(mod, draw(specs), config=config)
    assert done.launches[0].grid[0] == 3 * blocks[0]


@pytest.mark.parametrize(
    "shape",
    [(), (5,), (1,), (130,), (3, 7), (2, 3, 11), (2, 1, 3, 9), (2, 3, 1, 2, 17), (1, 1, 1, 1, 1)],
    ids=str,
)
def test_any_rank(shape: tuple[int, ...]) -> None:
    def body(emit: Emit, x: Any, y: Any) -> Any:
        z = emit(R.tanh(emit(R.add(x, y))))
        return [z, R.sum(z, None if not shape else -1, True)] if shape else [z]

    specs = [(shape, "float32")] * 2
    check_emulated(build(body, *specs), draw(specs))


@pytest.mark.parametrize("axis", [0, 1, 2, (0, 2), (1, 2), (0, 1)], ids=str)
@pytest.mark.parametrize("shape", [(4, 6, 8), (3, 5, 33)], ids=str)
def test_softmax_over_any_axes(shape: tuple[int, ...], axis: Any) -> None:
    check_emulated(softmax_of(shape, axis=axis), draw([(shape, "float32")]))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("columns", [6, 64, 129, 4096])
def test_softmax_in_each_float(dtype: str, columns: int) -> None:
    check_emulated(softmax_of((5, columns), dtype), draw([((5, columns), dtype)]))


@pytest.mark.parametrize("columns", [3, 16, 100, 1024])
@pytest.mark.parametrize("dtype", ["int32", "int64", "int8", "uint8"])
def test_integers(dtype: str, columns: int) -> None:
    def body(emit: Emit, x: Any, y: Any) -> Any:
        total = emit(R.add(emit(R.maximum(x, y)), x))
        high = emit(R.max(total, -1, True))
        return [emit(R.subtract(total, high)), emit(R.min(total, -1, True)), high]

    specs = [((5, columns), dtype)] * 2
    check_emulated(build(body, *specs), draw(specs))


@pytest.mark.parametrize("columns", [1, 5, 32, 130, 2048])
def test_booleans(columns: int) -> None:
    def body(emit: Emit, x: Any, y: Any, mask: Any) -> Any:
        less = emit(R.logical_or(emit(R.less(x, y)), mask))
        return [emit(R.where(less, x, y)), less, emit(R.logical_not(mask))]

    specs = [((6, columns), "float32"), ((6, columns), "float32"), ((6, columns), "bool")]
    check_emulated(build(body, *specs), draw(specs))


@pytest.mark.parametrize("combiner", ["sum", "max", "min", "prod", "mean"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_combiner(combiner: str, dtype: str) -> None:
    def body(emit: Emit, x: Any) -> Any:
        return R.multiply(x, emit(getattr(R, combiner)(x, -1, True)))

    check_emulated(build(body, ((9, 37), dtype)), draw([((9, 37), dtype)], low=0.5, high=1.2))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_maximum_of_infinities(dtype: str) -> None:
    mod = build(lambda emit, x: R.add(x, emit(R.max(x, -1, True))), ((4, 40), dtype))
    x = np.full((4, 40), -np.inf)
    x[1, 3], x[2, 39], x[3] = 2.0, np.inf, 1.0
    target = emulated_target()
    pipeline = tvm_stitch.relax.pipeline(target)
    (found,) = run_cuda(mod, [x.astype(dtype)], target=target, relax_pipeline=pipeline).check().outputs
    with np.errstate(invalid="ignore"):
        expected = x + x.max(-1, keepdims=True)
    np.testing.assert_array_equal(found.astype("float64"), expected)


@pytest.mark.parametrize("shape", [(5,), (4, 9), (2, 3, 50), (17, 300)], ids=str)
@pytest.mark.parametrize("axis", [None, 0], ids=["all", "columns"])
def test_all_reduce_and_column_reduce_end_a_scope(shape: tuple[int, ...], axis: int | None) -> None:
    def body(emit: Emit, x: Any) -> Any:
        return R.sum(emit(R.multiply(emit(R.exp(x)), x)), axis)

    check_emulated(build(body, (shape, "float32")), draw([(shape, "float32")]))


@pytest.mark.parametrize("shape", [(3, 20), (33, 130)], ids=str)
def test_row_softmax_and_its_column_sums_are_right(shape: tuple[int, ...]) -> None:
    def body(emit: Emit, x: Any) -> Any:
        y = emit(softmax(emit, x))
        return [y, R.sum(y, 0)]

    check_emulated(build(body, (shape, "float32")), draw([(shape, "float32")]), launches=None)


MOVES: dict[str, Callable[..., Any]] = {
    "transpose": lambda emit, x: R.exp(emit(R.permute_dims(x, [0, 2, 1]))),
    "transpose and reduce": lambda emit, x: softmax(emit, emit(R.permute_dims(x, [2, 0, 1]))),
    "slice": lambda emit, x: R.exp(emit(R.strided_slice(x, [2], [1], [6]))),
    "strided slice": lambda emit, x: softmax(emit, emit(R.strided_slice(x, [2], [0], [8], [2]))),
    "concat": lambda emit, x: softmax(emit, emit(R.concat([x, emit(R.exp(x))], axis=2))),
    "pad": lambda emit, x: R.tanh(emit(R.nn.pad(x, [0, 0, 1, 2, 3, 0]))),
    "flatten": lambda emit, x: softmax(emit, emit(R.reshape(x, (4, 48)))),
    "split rows": lambda emit, x: R.exp(emit(R.reshape(softmax(emit, x), (4, 3, 2, 8)))),
    "flip": lambda emit, x: R.exp(emit(R.flip(x, 2))),
    "tile": lambda emit, x: R.exp(emit(R.tile(x, [1, 2, 1]))),
    "repeat": lambda emit, x: R.exp(emit(R.repeat(x, 2, 1))),
    "expand": lambda emit, x: R.add(emit(R.expand_dims(x, 1)), emit(R.expand_dims(x, 2))),
    "outer": lambda emit, x: R.multiply(emit(R.sum(x, -1, True)), emit(R.exp(x))),
    "gather": lambda emit, x: R.exp(emit(R.take(x, relax.const([3, 0, 2, 3, 1], "int32"), axis=0))),
    "cumulated scalars": lambda emit, x: R.add(x, emit(R.exp(relax.const(0.5, "float32")))),
    "where": lambda emit, x: R.where(emit(R.greater(x, relax.const(0.0, "float32"))), emit(R.exp(x)), x),
    "tril": lambda emit, x: softmax(emit, emit(R.tril(x))),
}


@pytest.mark.parametrize("name", MOVES)
def test_data_movement(name: str) -> None:
    specs = [((4, 6, 8), "float32")]
    mod = build(lambda emit, x: emit(MOVES[name](emit, x)), *specs)
    check_emulated(mod, draw(specs), launches=None)


@pytest.mark.parametrize("rows", [0, 1, 7, 64, 300])
@pytest.mark.parametrize("columns", [5, 128, 4096])
def test_symbolic_rows(rows: int, columns: int) -> None:
    mod = cases.softmax(4, columns, symbolic=True).build()
    if rows:
        check_emulated(mod, draw([((rows, columns), "float32")]))
        return
    check_emulated(mod, [np.zeros((0, columns), "float32")], launches=None)


@pytest.mark.parametrize("shape", [(2, 3), (1, 1), (5, 7)], ids=str)
def test_two_symbolic_extents(shape: tuple[int, int]) -> None:
    n, m = symbol("n"), symbol("m")
    mod = build(
        lambda emit, x, b: softmax(emit, emit(R.add(emit(R.tanh(x)), b))),
        ((n, m, 24), "float32"),
        ((m, 1), "float32"),
    )
    check_emulated(mod, draw([((*shape, 24), "float32"), ((shape[1], 1), "float32")]))


@pytest.mark.parametrize("size", [0, 1, 5, 1000, 4096])
def test_symbolic_element_wise(size: int) -> None:
    mod = build(lambda emit, x: R.tanh(emit(R.add(x, x))), ((symbol(),), "float32"))
    check_emulated(mod, draw([((size,), "float32")]), launches=None)


@pytest.mark.parametrize("seed", range(1, 5))
def test_the_order_of_threads_does_not_matter(seed: int) -> None:
    mod = cases.add_layer_norm_gelu(9, 515).build()
    inputs = cases.add_layer_norm_gelu(9, 515).inputs(np.random.default_rng(seed))
    check_emulated(mod, inputs, seed=seed)


@pytest.mark.parametrize("rows", [1, 9, 64, 100])
@pytest.mark.parametrize("columns", [24, 200, 3000])
def test_blocks_that_take_several_groups_of_rows(
    monkeypatch: pytest.MonkeyPatch, rows: int, columns: int
) -> None:
    """As where a grid has not enough blocks, here with a grid of three."""
    monkeypatch.setattr("tvm_stitch.plan.gpu.tile.MOST_BLOCKS", 3)
    done = check_emulated(softmax_of((rows, columns)), draw([((rows, columns), "float32")]))
    assert done.launches[0].grid[0] <= 3


@pytest.mark.parametrize(
    ("dtype", "columns"), [("float16", 100_000), ("float16", 60_001), ("bfloat16", 100_008)]
)
def test_long_rows_of_half_types(dtype: str, columns: int) -> None:
    check_emulated(softmax_of((1, columns), dtype), draw([((1, columns), dtype)]))


@pytest.mark.parametrize("columns", [50_000, 70_000])
@pytest.mark.parametrize("rows", [0, 2])
def test_symbolic_numbers_of_long_rows(rows: int, columns: int) -> None:
    mod = cases.softmax(4, columns, symbolic=True).build()
    check_emulated(mod, draw([((rows, columns), "float32")]), launches=None)


@pytest.mark.parametrize("shape", [(2, 12, 4, 35), (1, 8, 2, 4096), (2, 6, 3, 20_000)], ids=str)
def test_group_norm(shape: tuple[int, int, int, int]) -> None:
    case = cases.group_norm_silu(*shape)
    check_emulated(case.build(), case.inputs(np.random.default_rng(0)))


@pytest.mark.parametrize("columns", [31, 96, 2000])
def test_masked_rows(columns: int) -> None:
    """Attention scores where a mask leaves one position of a row, or half of them."""
    rng = np.random.default_rng(columns)
    mask = np.where(rng.random((6, columns)) < 0.5, np.float32(-1e9), np.float32(0))
    mask[0], mask[0, 3] = -1e9, 0
    mod = build(
        lambda emit, x, m: softmax(emit, emit(R.add(x, m))),
        ((6, columns), "float32"),
        ((6, columns), "float32"),
    )
    check_emulated(mod, [draw([((6, columns), "float32")])[0], mask])


@pytest.mark.parametrize("columns", [7, 40, 1000])
def test_float64(columns: int) -> None:
    def body(emit: Emit, x: Any) -> Any:
        centred = emit(R.subtract(x, emit(R.mean(x, -1, True))))
        return [R.divide(centred, emit(R.sqrt(emit(R.sum(emit(R.multiply(centred, centred)), -1, True)))))]

    check_emulated(build(body, ((5, columns), "float64")), draw([((5, columns), "float64")]))


@pytest.mark.parametrize("sizes", [(16, 5), (5, 16), (1, 64), (33, 33)], ids=str)
def test_columns_of_two_lengths(sizes: tuple[int, int]) -> None:
    """Rows reduced over two lengths: two column spaces share the rows."""
    a, b = sizes

    def body(emit: Emit, x: Any, y: Any) -> Any:
        high, total = emit(R.max(x, -1, True)), emit(R.sum(emit(R.exp(y)), -1, True))
        return [R.multiply(x, total), R.multiply(y, high)]

    specs = [((9, a), "float32"), ((9, b), "float32")]
    check_emulated(build(body, *specs), draw(specs), launches=None)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_every_kind_of_value_leaves_one_kernel(dtype: str) -> None:
    """A row's value, a full one, a converted one and a transposed one."""

    def body(emit: Emit, x: Any) -> Any:
        high = emit(R.max(x, -1, True))
        moved = emit(R.subtract(x, high))
        return [high, moved, R.astype(moved, "int32"), R.permute_dims(moved), R.greater(moved, high)]

    specs = [((12, 48), dtype)]
    check_emulated(build(body, *specs), draw(specs), launches=None)


@pytest.mark.parametrize("seed", range(4))
def test_random_graphs_with_column_reductions(seed: int) -> None:
    from stitch_testing.random.graphs import check_graph_cuda_emulated, random_graph, stitched_pipeline

    result = check_graph_cuda_emulated(
        random_graph(5000 + seed, max_elements=4000, level="column"), stitched_pipeline("emulated-cuda")
    )
    assert result.ok, str(result)
