# SPDX-License-Identifier: Apache-2.0
"""Hand-written kernels with grid and cluster barriers, as Relax modules. They measure, stress and break barriers."""

# TVMScript's annotations are buffers, not types.
# mypy: disable-error-code="valid-type, no-untyped-def"

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import tvm
from tvm import relax
from tvm.script import tirx as T

_COOPERATIVE = ["tirx.use_cooperative_launch"]
EPSILON = 1e-5


def _one_call(function: Any, inputs: list[Any], outputs: list[Any], repeat: int = 1) -> tvm.IRModule:
    """Make a module whose ``main`` calls a PrimFunc ``repeat`` times in a chain, and returns its first output."""
    builder = relax.BlockBuilder()
    variables = [relax.Var(f"x{i}", info) for i, info in enumerate(inputs)]
    gvar = builder.add_func(function, "kernel")
    with builder.function("main", variables):
        with builder.dataflow():
            arguments: list[Any] = list(variables)
            for _ in range(repeat):
                results = builder.emit(relax.call_tir(gvar, relax.Tuple(arguments), outputs))
                first = builder.emit(relax.TupleGetItem(results, 0)) if len(outputs) > 1 else results
                arguments = [first]
            output = builder.emit_output(first)
        builder.emit_func_output(output)
    return builder.finalize()


def chained_reductions(blocks: int, threads: int, elements: int, repeat: int = 1) -> tvm.IRModule:
    """Make a kernel that normalises a whole float32 vector: the mean, then the variance, each behind a grid barrier.

    Two chained full reductions are in one cooperative kernel. Partial sums go through two scratch buffers, which are
    outputs without readers. Sums have a fixed order, so results are equal bit for bit from launch to launch.
    ``threads`` is a power of two from 32 to 1024. ``repeat`` kernels follow each other, so that RewriteCUDAGraph can
    capture some that touch neither inputs nor outputs of ``main``.
    """
    if threads not in (32, 64, 128, 256, 512, 1024):
        raise ValueError(f"threads must be a power of two from 32 to 1024, got {threads}")
    levels, rounds = threads.bit_length() - 1, -(-elements // (blocks * threads))

    @T.prim_func(s_tir=True)
    def kernel(
        x: T.Buffer((elements,), "float32"),
        out: T.Buffer((elements,), "float32"),
        sums: T.Buffer((blocks,), "float32"),
        squares: T.Buffer((blocks,), "float32"),
    ):
        T.func_attr(
            {
                "tirx.is_scheduled": True,
                "op_pattern": 8,
                "tirx.noalias": True,
                "tirx.kernel_launch_params": _COOPERATIVE,
            }
        )
        with T.sblock("root"):
            T.reads()
            T.writes()
            b = T.launch_thread("blockIdx.x", blocks)
            t = T.launch_thread("threadIdx.x", threads)
            part = T.alloc_buffer((threads,), "float32", scope="shared")
            acc = T.alloc_buffer((1,), "float32", scope="local")
            mean = T.alloc_buffer((1,), "float32", scope="local")
            acc[0] = T.float32(0)
            for i in range(rounds):
                if (i * blocks + b) * threads + t < elements:
                    acc[0] = acc[0] + x[(i * blocks + b) * threads + t]
            part[t] = acc[0]
            T.evaluate(T.tvm_storage_sync("shared"))
            for level in range(levels):
                if t < T.shift_right(threads // 2, level):
                    part[t] = part[t] + part[t + T.shift_right(threads // 2, level)]
                T.evaluate(T.tvm_storage_sync("shared"))
            if t == 0:
                sums[b] = part[0]
            T.evaluate(T.cuda.grid_sync())
            mean[0] = T.float32(0)
            for i in range(blocks):
                mean[0] = mean[0] + sums[i]
            mean[0] = mean[0] / T.float32(elements)
            acc[0] = T.float32(0)
            for i in range(rounds):
                if (i * blocks + b) * threads + t < elements:
                    acc[0] = acc[0] + (x[(i * blocks + b) * threads + t] - mean[0]) * (
                        x[(i * blocks + b) * threads + t] - mean[0]
                    )
            part[t] = acc[0]
            T.evaluate(T.tvm_storage_sync("shared"))
            for level in range(levels):
                if t < T.shift_right(threads // 2, level):
                    part[t] = part[t] + part[t + T.shift_right(threads // 2, level)]
                T.evaluate(T.tvm_storage_sync("shared"))
            if t == 0:
                squares[b] = part[0]
            T.evaluate(T.cuda.grid_sync())
            acc[0] = T.float32(0)
            for i in range(blocks):
                acc[0] = acc[0] + squares[i]
            acc[0] = T.rsqrt(acc[0] / T.float32(elements) + T.float32(EPSILON))
            for i in range(rounds):
                if (i * blocks + b) * threads + t < elements:
                    out[(i * blocks + b) * threads + t] = (x[(i * blocks + b) * threads + t] - mean[0]) * acc[
                        0
                    ]

    vector, scratch = (relax.TensorType((n,), "float32") for n in (elements, blocks))
    return _one_call(kernel, [vector], [vector, scratch, scratch], repeat)


def chained_reductions_reference(x: np.ndarray, repeat: int = 1) -> np.ndarray:
    """Return the result of ``chained_reductions`` in float64."""
    y = x.astype(np.float64)
    for _ in range(repeat):
        y = (y - y.mean()) / np.sqrt(y.var() + EPSILON)
    return y


Barrier = Literal["grid", "cluster"]


def barrier_loop(
    barrier: Barrier, barriers: int, blocks: int, threads: int, blocks_per_sm: int, cluster: int = 1
) -> tvm.IRModule:
    """Make a kernel that only passes ``barriers`` barriers, and writes one float32 for each block.

    Registers are bounded so that ``blocks_per_sm`` blocks fit on an SM. ``cluster`` is the number of blocks of a
    cluster for cluster barriers. ``blocks`` must be a multiple of it.
    """
    if blocks % cluster:
        raise ValueError(f"{blocks} blocks are not a multiple of clusters of {cluster}")
    if barrier == "grid":

        @T.prim_func(s_tir=True)
        def kernel(out: T.Buffer((blocks,), "float32")):
            T.func_attr(
                {
                    "tirx.is_scheduled": True,
                    "op_pattern": 8,
                    "tirx.noalias": True,
                    "tirx.kernel_launch_params": _COOPERATIVE,
                }
            )
            with T.sblock("root"):
                T.reads()
                T.writes()
                b = T.launch_thread("blockIdx.x", blocks)
                t = T.launch_thread("threadIdx.x", threads)
                with T.attr(T.int32(0), "tirx.launch_bounds_min_blocks_per_sm", blocks_per_sm):
                    for _ in range(barriers):
                        T.evaluate(T.cuda.grid_sync())
                    if t == 0:
                        out[b] = T.float32(barriers)

    else:

        @T.prim_func(s_tir=True)
        def kernel(out: T.Buffer((blocks,), "float32")):
            T.func_attr({"tirx.is_scheduled": True, "op_pattern": 8, "tirx.noalias": True})
            with T.sblock("root"):
                T.reads()
                T.writes()
                b = T.launch_thread("blockIdx.x", blocks)
                _rank = T.launch_thread("clusterCtaIdx.x", cluster)
                t = T.launch_thread("threadIdx.x", threads)
                with T.attr(T.int32(0), "tirx.launch_bounds_min_blocks_per_sm", blocks_per_sm):
                    for _ in range(barriers):
                        T.evaluate(T.cuda.cluster_sync())
                    if t == 0:
                        out[b] = T.float32(barriers)

    return _one_call(kernel, [], [relax.TensorType((blocks,), "float32")])
