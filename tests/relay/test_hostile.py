# SPDX-License-Identifier: Apache-2.0
"""Relay programs chosen to break a compiler: what stock relay.build computes, the stitched module computes as well."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relay
from tvm.runtime.vm import VirtualMachine

from cuda_emulator.relay_lowering import lower_relay
from stitch_testing.relay.run import build_stitched, build_stock, run
from tvm_stitch.relay import enable

LLVM = tvm.target.Target("llvm")
F32 = "float32"


def tensor(name: str, *shape: int, dtype: str = F32) -> Any:
    return relay.var(name, shape=shape, dtype=dtype)


def unused(x: Any, y: Any) -> Any:
    return relay.exp(x)


def returns_its_argument(x: Any, y: Any) -> Any:
    return relay.Tuple([x, relay.exp(y), x])


def same_result_twice(x: Any, y: Any) -> Any:
    e = relay.tanh(relay.add(x, y))
    return relay.Tuple([e, relay.sum(e, axis=1), e])


def nested_tuples(x: Any, y: Any) -> Any:
    pair = relay.Tuple([relay.exp(x), relay.Tuple([relay.tanh(y), x])])
    inner = relay.TupleGetItem(pair, 1)
    return relay.add(relay.TupleGetItem(pair, 0), relay.TupleGetItem(inner, 0))


def constant_only(x: Any, y: Any) -> Any:
    return relay.Tuple([relay.exp(relay.ones((4, 8), F32)), relay.add(x, y)])


def twice_the_same_argument(x: Any, y: Any) -> Any:
    half = relay.strided_slice(y, [0, 0], [4, 4])
    return relay.multiply(relay.add(x, x), relay.concatenate([half, half], axis=1))


def sorts(x: Any, y: Any) -> Any:
    order = relay.argsort(relay.exp(x), axis=1, dtype="int32")
    best = relay.topk(relay.tanh(y), k=3, axis=1, ret_type="both")
    return relay.Tuple([relay.gather(x, 1, relay.cast(order, "int64")), relay.sqrt(relay.abs(best[0]))])


def prefix_sums(x: Any, y: Any) -> Any:
    return relay.nn.softmax(relay.cumsum(relay.exp(x), axis=1) + y)


def arg_extremes(x: Any, y: Any) -> Any:
    return relay.Tuple([relay.argmax(relay.add(x, y), axis=1), relay.argmin(relay.tanh(x), axis=0)])


def boundaries_of_the_user(x: Any, y: Any) -> Any:
    return relay.tanh(relay.annotation.stop_fusion(relay.exp(relay.add(x, y))))


def quantised(x: Any, y: Any) -> Any:
    q = relay.qnn.quantize(x, relay.const(0.05), relay.const(3), out_dtype="int8")
    p = relay.qnn.quantize(y, relay.const(0.04), relay.const(-2), out_dtype="int8")
    total = relay.qnn.add(
        q,
        p,
        relay.const(0.05),
        relay.const(3),
        relay.const(0.04),
        relay.const(-2),
        relay.const(0.1),
        relay.const(0),
    )
    return relay.qnn.dequantize(total, relay.const(0.1), relay.const(0))


def integers(x: Any, y: Any) -> Any:
    a, b = relay.cast(x * relay.const(9.0), "int64"), relay.cast(y * relay.const(3.0), "int64")
    safe = relay.where(relay.equal(b, relay.const(0, "int64")), relay.ones_like(b), b)
    return relay.Tuple(
        [relay.floor_divide(a, safe), relay.floor_mod(a, safe), relay.left_shift(a, relay.ones_like(a))]
    )


def scattered(x: Any, y: Any) -> Any:
    index = relay.cast(relay.floor(relay.abs(y)), "int64")
    return relay.exp(relay.scatter_elements(x, index, relay.tanh(y), 0))


def close_constants(x: Any, y: Any) -> Any:
    """TVM takes floats that differ by less than 1e-9 for equal."""
    a = relay.nn.layer_norm(
        x * relay.const(1e-6), relay.ones((8,), F32), relay.zeros((8,), F32), epsilon=1e-10
    )
    b = relay.nn.layer_norm(
        x * relay.const(1e-6), relay.ones((8,), F32), relay.zeros((8,), F32), epsilon=1e-12
    )
    return relay.Tuple([a, b, relay.maximum(y, relay.const(1e-12)), relay.maximum(y, relay.const(1e-10))])


def images(x: Any, y: Any) -> Any:
    image = relay.reshape(x, (1, 2, 4, 4))
    weight = relay.reshape(
        relay.strided_slice(relay.concatenate([y, y], axis=0), [0, 0], [9, 8]), (4, 2, 3, 3)
    )
    conv = relay.nn.conv2d(image, weight, padding=(1, 1), channels=4, kernel_size=(3, 3))
    pooled = relay.nn.max_pool2d(relay.nn.relu(conv), (2, 2), (2, 2))
    return relay.nn.batch_flatten(relay.nn.global_avg_pool2d(relay.exp(pooled)))


BODIES = [
    unused, returns_its_argument, same_result_twice, nested_tuples, constant_only, twice_the_same_argument, sorts,
    prefix_sums, arg_extremes, boundaries_of_the_user, quantised, integers, scattered, close_constants, images,
]  # fmt: skip


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_programs(body: Callable[[Any, Any], Any], level: int) -> None:
    if body is quantised and level == 0:
        pytest.skip("TVM itself lowers quantised operators from opt_level 1 on")
    shape = (6, 8) if body is images else (4, 8)
    x, y = tensor("x", *((4, 8) if body is images else shape)), tensor("y", *shape)
    mod = tvm.IRModule.from_expr(relay.Function([x, y], body(x, y)))
    rng = np.random.default_rng(len(body.__name__))
    inputs = [rng.standard_normal([int(s) for s in v.type_annotation.shape]).astype(F32) for v in (x, y)]
    with tvm.transform.PassContext(opt_level=level):
        expected, found = (run(build(mod, LLVM), inputs) for build in (build_stock, build_stitched))
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (13, 17), (1031, 3), (3, 1031)])
def test_odd_shapes(shape: tuple[int, int]) -> None:
    x = tensor("x", *shape)
    out = relay.Tuple([relay.nn.softmax(x), relay.sum(relay.exp(x), axis=0), relay.transpose(relay.tanh(x))])
    data = np.random.default_rng(shape[0]).standard_normal(shape).astype(F32)
    mod = tvm.IRModule.from_expr(relay.Function([x], out))
    for a, b in zip(run(build_stitched(mod, LLVM), [data]), run(build_stock(mod, LLVM), [data]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_no_rows() -> None:
    x = tensor("x", 0, 8)
    mod = tvm.IRModule.from_expr(relay.Function([x], relay.exp(relay.add(x, x))))
    try:
        build_stock(mod, LLVM)
    except tvm.TVMError as err:
        with pytest.raises(type(err)):
            build_stitched(mod, LLVM)
    else:
        (found,) = run(build_stitched(mod, LLVM), [np.zeros((0, 8), F32)])
        assert found.shape == (0, 8)


def test_names_that_are_no_identifiers() -> None:
    x, w = tensor("input/ids:0", 4, 8), tensor("层.weight", 8)
    mod = tvm.IRModule.from_expr(relay.Function([x, w], relay.nn.softmax(relay.multiply(x, w))))
    data, weight = np.ones((4, 8), F32), np.arange(8, dtype=F32)
    with enable():
        lib = relay.build(mod, "llvm", params={"层.weight": weight})
    module = tvm.contrib.graph_executor.GraphModule(lib["default"](tvm.cpu()))
    module.set_input("input/ids:0", data)
    module.run()
    e = np.exp(weight - weight.max())
    np.testing.assert_allclose(module.get_output(0).numpy()[0], e / e.sum(), rtol=1e-5)


def test_loops_and_run_time_shapes_in_the_virtual_machine() -> None:
    rows = relay.Any()
    x = relay.var("x", relay.TensorType((rows, 8), F32))
    mod = tvm.IRModule.from_expr(relay.Function([x], relay.nn.softmax(relay.exp(x))))
    with enable() as found:
        executable = relay.vm.compile(mod, "llvm")
    assert "run time" in str(found.declined)
    data = np.random.default_rng(0).standard_normal((5, 8)).astype(F32)
    result = VirtualMachine(executable, tvm.cpu()).invoke("main", tvm.nd.array(data)).numpy()
    e = np.exp(np.exp(data))
    np.testing.assert_allclose(result, e / e.sum(1, keepdims=True), rtol=1e-5)


def test_functions_that_call_each_other() -> None:
    x, y, n = tensor("x", 4, 8), tensor("y", 4, 8), relay.var("n", shape=(), dtype="int32")
    step, loop = relay.GlobalVar("step"), relay.GlobalVar("loop")
    mod = tvm.IRModule()
    mod[step] = relay.Function([x], relay.nn.softmax(relay.exp(x)), relay.TensorType((4, 8), F32))
    again = relay.Call(loop, [relay.Call(step, [y]), relay.subtract(n, relay.const(1))])
    body = relay.If(relay.less_equal(n, relay.const(0)), relay.tanh(relay.add(y, y)), again)
    mod[loop] = relay.Function([y, n], body, relay.TensorType((4, 8), F32))
    z, m = tensor("z", 4, 8), relay.var("m", shape=(), dtype="int32")
    mod["main"] = relay.Function([z, m], relay.Call(loop, [relay.sqrt(relay.abs(z)), m]))
    data = np.random.default_rng(1).standard_normal((4, 8)).astype(F32)

    def outcome() -> np.ndarray:
        vm = VirtualMachine(relay.vm.compile(relay.transform.InferType()(mod), "llvm"), tvm.cpu())
        return vm.invoke("main", tvm.nd.array(data), tvm.nd.array(np.array(3, "int32"))).numpy()

    expected = outcome()
    with enable() as found:
        np.testing.assert_allclose(outcome(), expected, rtol=1e-5)
    assert found.plans


@pytest.mark.parametrize("reduce", [relay.sum, relay.max, relay.mean, relay.prod], ids=lambda f: f.__name__)
def test_a_reduction_over_no_axes_is_left_to_tvm(reduce: Any) -> None:
    """TVM's definition has another shape than its type: a kernel would write past its output."""
    x = relay.var("x", shape=(2, 3, 4))
    mod = tvm.IRModule.from_expr(relay.Function([x], reduce(relay.exp(x), axis=[])))
    with enable() as found:
        relay.build(mod, "llvm")
    (reason,) = found.report().left.values()
    assert reason == "TVM's definition gives a result of shape (2, 3, 4), its type says ()"


def test_strided_set_is_left_to_tvm() -> None:
    x, y = relay.var("x", shape=(7, 5)), relay.var("y", shape=(3, 5))
    begin, end, strides = (relay.const(v) for v in ([0, 0], [6, 5], [2, 1]))
    body = relay.exp(relay.strided_set(relay.tanh(x), y, begin, end, strides))
    a, b = np.random.default_rng(0).standard_normal((2, 7, 5)).astype("float32")
    with enable() as found:
        lib = relay.build(tvm.IRModule.from_expr(relay.Function([x, y], body)), "llvm")
    # TVM computes all three in one kernel, so its neighbours stay with it.
    assert list(found.report().left) == ["strided_set"] and found.plans == {}
    expected = np.tanh(a.astype("float64"))
    expected[0:6:2] = b[:3]
    np.testing.assert_allclose(run(lib, [a, b[:3]])[0], np.exp(expected), rtol=1e-5)


def test_names_of_the_modules_own_functions_are_not_taken() -> None:
    shape = relay.TensorType((4, 8))
    own, a, x = (
        relay.GlobalVar("tvmgen_default_stitch_exp_softmax"),
        relay.var("a", shape),
        relay.var("x", shape),
    )
    mod = tvm.IRModule()
    mod[own] = relay.Function([a], relay.nn.softmax(relay.exp(a)), shape)
    mod["main"] = relay.Function(
        [x], relay.Call(own, [relay.tanh(x)]) + relay.nn.softmax(relay.exp(x)), shape
    )
    mod = relay.transform.InferType()(mod)
    value = np.random.default_rng(0).standard_normal((4, 8)).astype("float32")
    with enable() as found:
        executable = relay.vm.compile(mod, "llvm")
    assert found.plans and str(own.name_hint) not in found.plans
    got = VirtualMachine(executable, tvm.cpu()).invoke("main", tvm.nd.array(value)).numpy()
    stock = (
        VirtualMachine(relay.vm.compile(mod, "llvm"), tvm.cpu()).invoke("main", tvm.nd.array(value)).numpy()
    )
    np.testing.assert_allclose(got, stock, rtol=1e-5)


@pytest.mark.parametrize("name", ["a b", "x(){}\n__device__ int pwned; void y"], ids=["space", "code"])
def test_names_of_a_module_and_its_inputs_are_identifiers(name: str) -> None:
    x = relay.var(name, shape=(4, 8), dtype="float32")
    mod = tvm.IRModule.from_expr(relay.Function([x], relay.nn.softmax(relay.exp(x))))

    def build(mod: Any, target: Any, params: Any) -> Any:
        return relay.build(mod, target, params=params, mod_name=name)

    with enable():
        source = str(lower_relay(mod, build=build).source)
    kernels = re.findall(r'^extern "C" __global__ void (?:__launch_bounds__\(\d+\) )?(.*?)\(', source, re.M)
    assert kernels and all(kernel.isidentifier() for kernel in kernels) and "pwned; void" not in source
