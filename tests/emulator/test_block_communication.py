# SPDX-License-Identifier: Apache-2.0
"""Relax functions whose kernels have grid barriers, clusters and dynamic shared memory, in the emulator."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from cuda_emulator import run_cuda


@I.ir_module
class GridBarrier:
    @T.prim_func(s_tir=True)
    def columns(
        x: T.Buffer((64, 32), "float32"),
        out: T.Buffer((64, 32), "float32"),
        part: T.Buffer((4, 32), "float32"),
    ):
        T.func_attr(
            {
                "tirx.is_scheduled": True,
                "op_pattern": 8,
                "tirx.noalias": True,
                "tirx.kernel_launch_params": ["tirx.use_cooperative_launch"],
            }
        )
        with T.sblock("root"):
            T.reads()
            T.writes()
            bx = T.launch_thread("blockIdx.x", 4)
            tx = T.launch_thread("threadIdx.x", 32)
            acc = T.alloc_buffer((1,), "float32", scope="local")
            acc[0] = T.float32(0)
            for i in range(16):
                acc[0] = acc[0] + x[bx * 16 + i, tx]
            part[bx, tx] = acc[0]
            T.evaluate(T.cuda.grid_sync())
            acc[0] = part[0, tx] + part[1, tx] + part[2, tx] + part[3, tx]
            for i in range(16):
                out[bx * 16 + i, tx] = x[bx * 16 + i, tx] / acc[0]

    @R.function
    def main(x: R.Tensor((64, 32), "float32")):
        cls = GridBarrier
        with R.dataflow():
            both = R.call_tir(
                cls.columns, (x,), [R.Tensor((64, 32), "float32"), R.Tensor((4, 32), "float32")]
            )
            y = both[0]
            R.output(y)
        return y


@pytest.mark.parametrize("seed", [0, 3])
def test_grid_barrier(seed: int) -> None:
    x = np.random.default_rng(3).random((64, 32)).astype("float32")
    run = run_cuda(GridBarrier, [x], seed=seed).check()
    np.testing.assert_allclose(run.outputs[0], x / x.sum(0), rtol=1e-5)
    assert run.launches[0].cooperative


def test_removed_grid_barrier_is_found() -> None:
    broken = tvm.script.from_source(GridBarrier.script().replace("T.cuda.grid_sync()", "T.cuda.cta_sync()"))
    x = np.ones((64, 32), "float32")
    run = run_cuda(broken, [x])
    assert {r.kind for r in run.reports} <= {"race", "uninitialized-read"}
    assert {r.array for r in run.reports} == {"part"}


@I.ir_module
class Cluster:
    @T.prim_func(s_tir=True)
    def swap(x: T.Buffer((4, 32), "float32"), out: T.Buffer((4, 32), "float32")):
        T.func_attr({"tirx.is_scheduled": True, "op_pattern": 8, "tirx.noalias": True})
        with T.sblock("root"):
            T.reads()
            T.writes()
            bx = T.launch_thread("blockIdx.x", 4)
            rank = T.launch_thread("clusterCtaIdx.x", 2)
            tx = T.launch_thread("threadIdx.x", 32)
            s = T.alloc_buffer((32,), "float32", scope="shared")
            m = T.alloc_buffer((1,), "uint32", scope="local")
            v = T.alloc_buffer((1,), "float32", scope="local")
            s[tx] = x[bx, tx]
            T.evaluate(T.cuda.cluster_sync())
            T.evaluate(
                T.ptx.mapa.shared__cluster.u32(
                    m[0],
                    T.cuda.cvta_generic_to_shared(s.access_ptr("r")),
                    T.uint32(1) - T.cast(rank, "uint32"),
                )
            )
            m[0] = m[0] + T.cast(tx, "uint32") * T.uint32(4)
            T.evaluate(T.ptx.ld.shared__cluster.f32(v[0], m[0]))
            out[bx, tx] = v[0]
            T.evaluate(T.cuda.cluster_sync())

    @R.function
    def main(x: R.Tensor((4, 32), "float32")):
        cls = Cluster
        with R.dataflow():
            y = R.call_tir(cls.swap, (x,), R.Tensor((4, 32), "float32"))
            R.output(y)
        return y


def test_cluster_and_distributed_shared_memory() -> None:
    x = np.random.default_rng(4).random((4, 32)).astype("float32")
    run = run_cuda(Cluster, [x]).check()
    np.testing.assert_array_equal(run.outputs[0], x[[1, 0, 3, 2]])
    assert run.launches[0].cluster == (2, 1, 1)


@I.ir_module
class DynamicShared:
    @T.prim_func(s_tir=True)
    def rows(x: T.Buffer((8, 64), "float16"), out: T.Buffer((8, 64), "float32")):
        T.func_attr({"tirx.is_scheduled": True, "op_pattern": 8, "tirx.noalias": True})
        with T.sblock("root"):
            T.reads()
            T.writes()
            bx = T.launch_thread("blockIdx.x", 8)
            tx = T.launch_thread("threadIdx.x", 32)
            s = T.alloc_buffer((64,), "float16", scope="shared.dyn")
            q = T.alloc_buffer((64,), "float32", scope="shared.dyn")
            t = T.alloc_buffer((2,), "float16", scope="local")
            a = T.alloc_buffer((1,), "float32", scope="local")
            for v in T.vectorized(2):
                t[v] = x[bx, tx * 2 + v]
            for v in T.vectorized(2):
                s[tx * 2 + v] = t[v]
            for i in T.unroll(2):
                q[i * 32 + tx] = T.cast(s[63 - (i * 32 + tx)], "float32")
            a[0] = T.cuda.warp_reduce(q[tx] + q[tx + 32], "sum", 32)
            for i in T.unroll(2):
                out[bx, i * 32 + tx] = q[i * 32 + tx] / a[0]

    @R.function
    def main(x: R.Tensor((8, 64), "float16")):
        cls = DynamicShared
        with R.dataflow():
            y = R.call_tir(cls.rows, (x,), R.Tensor((8, 64), "float32"))
            R.output(y)
        return y


def test_dynamic_shared_memory_and_warp_reduce() -> None:
    x = np.random.default_rng(5).random((8, 64)).astype("float16")
    run = run_cuda(DynamicShared, [x]).check()
    reverse = x.astype("float32")[:, ::-1]
    np.testing.assert_allclose(run.outputs[0], reverse / reverse.sum(1, keepdims=True), rtol=1e-5)
    assert run.launches[0].shared_bytes == 384
