# SPDX-License-Identifier: Apache-2.0
"""Kernels of relay.build results, against the code that they hold."""

from __future__ import annotations

import pytest
import tvm
from tvm import relay

from stitch_testing.relay.count import count_kernels, kernels_in
from stitch_testing.relay.run import build_stock

LLVM = tvm.target.Target("llvm")
CUDA = tvm.target.Target("cuda -arch=sm_90", host="llvm")


def layer() -> tvm.IRModule:
    """softmax, a matrix product with its ReLU, a free reshape, a softmax by hand, a product of batches, a sort."""
    x, w = relay.var("x", shape=(64, 128)), relay.var("w", shape=(32, 128))
    y = relay.nn.relu(relay.nn.dense(relay.nn.softmax(x), w))
    z = relay.nn.softmax(relay.transpose(relay.reshape(y, (32, 64))))
    exponential = relay.exp(relay.subtract(z, relay.max(z, axis=1, keepdims=True)))
    z = relay.divide(exponential, relay.sum(exponential, axis=1, keepdims=True))
    batch = relay.expand_dims(z, 0)
    body = relay.Tuple([z, relay.nn.batch_matmul(batch, batch), relay.sort(z)])
    return tvm.IRModule.from_expr(relay.Function([x, w], body))


def test_on_a_cpu_every_node_that_is_no_view_is_a_kernel() -> None:
    counted = count_kernels(build_stock(layer(), LLVM))
    assert counted.compute_intensive == 2 and counted.external == 1
    assert all("dense" in name or "matmul" in name for name in counted.names_of("compute"))
    assert counted.names_of("external") == {"tvmgen_default_fused_sort"}
    # softmax, transpose, softmax, max, subtract + exp, sum, divide. TVM may fuse the last one differently.
    assert 6 <= counted.memory_intensive <= 8
    assert not any("reshape" in name and "transpose" not in name for name in counted.names)


def test_on_a_gpu_they_are_the_kernels_in_the_source() -> None:
    lib = build_stock(layer(), CUDA)
    counted = count_kernels(lib)
    source = lib.get_lib().imported_modules[0].get_source()
    # Views are compiled too, and never called.
    compiled = {name for name in kernels_in(source) if "fused_reshape_kernel" not in name}
    views = {name for name in compiled if "fused_expand_dims_kernel" in name}
    assert set(counted.names) == compiled - views
    assert counted.compute_intensive == 2 and counted.external == 0


def test_a_node_may_launch_several_kernels() -> None:
    x = relay.var("x", shape=(16, 5000))
    mod = tvm.IRModule.from_expr(relay.Function([x], relay.nn.log_softmax(x)))
    cpu, gpu = (count_kernels(build_stock(mod, target)) for target in (LLVM, CUDA))
    assert cpu.total == 1 and gpu.total == gpu.memory_intensive > 1
    assert gpu.names[0].endswith("_kernel") and gpu.names[1].endswith("_kernel_1")


def test_generated_functions_of_external_compilers_are_kernels_and_libraries_are_not() -> None:
    @tvm.register_func("relay.ext.counted_here", override=True)
    def build(function: relay.Function) -> tvm.runtime.Module:
        name = str(function.attrs["global_symbol"])
        x = tvm.te.placeholder((8,), name="x")
        y = tvm.te.compute((8,), lambda i: x[i] * 2.0)
        primfunc = tvm.te.create_prim_func([x, y]).with_attr("global_symbol", name)
        return tvm.build(tvm.IRModule({name: primfunc}), target="llvm")

    inner = relay.var("inner", shape=(8,))
    function = relay.Function([inner], relay.multiply(inner, relay.const(2.0)))
    for key, value in {"Compiler": "counted_here", "global_symbol": "twice", "Primitive": 1}.items():
        function = function.with_attr(key, tvm.tir.IntImm("int32", 1) if value == 1 else value)
    x = relay.var("x", shape=(8,))
    counted = count_kernels(build_stock(tvm.IRModule.from_expr(relay.Function([x], function(x))), LLVM))
    assert counted.launches == (("twice", "memory"),)


def test_other_modules_are_refused() -> None:
    x = relay.var("x", shape=(8,))
    mod = tvm.IRModule.from_expr(relay.Function([x], relay.exp(x)))
    with pytest.raises(ValueError, match="graph executor"):
        count_kernels(relay.vm.compile(mod, LLVM))
