# SPDX-License-Identifier: Apache-2.0
"""A convolution takes the transposition of its data in, unless others read that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build
from tvm_stitch import StitchConfig
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.relax import pipeline

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "haswell"})
W = relax.const(np.ones((4, 3, 3, 3), "float32"))


def conv(x: Any) -> Any:
    return R.nn.conv2d(x, W, data_layout="NHWC", kernel_layout="OHWI")


def one(emit: Any, x: Any) -> list[Any]:
    return [conv(emit(R.permute_dims(x, [0, 2, 3, 1])))]


def read_by_others(emit: Any, x: Any) -> list[Any]:
    t = emit(R.permute_dims(x, [0, 2, 3, 1]))
    return [conv(t), R.exp(t)]


def returned(emit: Any, x: Any) -> list[Any]:
    t = emit(R.permute_dims(x, [0, 2, 3, 1]))
    return [conv(t), t]


def of_a_slice(emit: Any, x: Any) -> list[Any]:
    t = emit(R.permute_dims(x, [0, 2, 3, 1]))
    return [conv(emit(R.strided_slice(t, [1], [0], [6])))]


@pytest.mark.parametrize(
    ("model", "kernels"), [(one, 1), (read_by_others, 2), (returned, 2), (of_a_slice, 2)]
)
def test_kernels(model: Any, kernels: int) -> None:
    mod = build(model, ((1, 3, 8, 8), "float32"))
    recorder = Recorder()
    pipeline(TARGET, None, recorder)(mod)
    assert [how.split(":")[0] for how in recorder.computed.values()] == ["our template"]
    assert count_kernels(mod, TARGET, pipeline(TARGET)).total == kernels
    assert count_kernels(mod, TARGET).total >= kernels


def test_tvms_own_convolution_takes_none_in() -> None:
    mod = build(one, ((1, 3, 8, 8), "float32"))
    assert count_kernels(mod, TARGET, pipeline(TARGET, StitchConfig(compute="tvm"))).total == 2


def test_a_convolutions_weight_stays_what_it_is() -> None:
    """No template reads one that is no constant. Its transposition would only slow TVM's kernel down."""

    def body(emit: Any, x: Any, w: Any) -> list[Any]:
        w = emit(R.permute_dims(w, [0, 3, 1, 2]))
        return [R.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="OIHW")]

    mod = build(body, ((1, 8, 8, 3), "float32"), ((4, 3, 3, 3), "float32"))
    assert count_kernels(mod, TARGET, pipeline(TARGET)).memory_intensive == 1


def transposed_between(emit: Any, x: Any) -> list[Any]:
    y = emit(R.matmul(x, relax.const(np.ones((8, 17), "float32"))))
    return [R.matmul(relax.const(np.ones((9, 17), "float32")), emit(R.permute_dims(y)))]


def activated_between(emit: Any, x: Any) -> list[Any]:
    y = emit(R.nn.relu(emit(R.matmul(x, relax.const(np.ones((8, 17), "float32"))))))
    return [R.matmul(relax.const(np.ones((9, 17), "float32")), emit(R.permute_dims(y)))]


def convolution_before(emit: Any, x: Any) -> list[Any]:
    y = emit(R.nn.conv2d(emit(R.reshape(x, (1, 1, 5, 8))), relax.const(np.ones((4, 1, 3, 3), "float32"))))
    return [R.matmul(emit(R.permute_dims(y, [0, 1, 3, 2])), relax.const(np.ones((3, 5), "float32")))]


@pytest.mark.parametrize("model", [transposed_between, activated_between, convolution_before])
def test_a_transposition_between_two_templates_is_of_one(model: Any) -> None:
    recorder = Recorder()
    strict = StitchConfig(strict=True)
    pipeline(TARGET, strict, recorder)(build(model, ((5, 8), "float32")))
    assert not recorder.declined
    mod = build(model, ((5, 8), "float32"))
    assert count_kernels(mod, TARGET, pipeline(TARGET, strict)).total == 2
    assert [how.split(":")[0] for how in recorder.computed.values()] == ["our template"] * 2


def with_a_residual(emit: Any, x: Any, r: Any) -> list[Any]:
    y = emit(R.nn.conv2d(x, relax.const(np.ones((4, 3, 3, 3), "float32")), padding=1))
    return [R.nn.relu(emit(R.add(y, r)))]


def test_a_residual_in_another_order_is_read_as_it_lies() -> None:
    rng = np.random.default_rng(0)
    x, r = (rng.standard_normal((1, c, 8, 8)).astype("float32") for c in (3, 4))
    mod = build(with_a_residual, (x.shape, "float32"), (r.shape, "float32"))
    recorder = Recorder()
    executable = tvm.compile(
        mod, TARGET, relax_pipeline=pipeline(TARGET, StitchConfig(strict=True), recorder)
    )
    tensors = [tvm.runtime.tensor(a) for a in (x, r)]
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](*tensors).numpy()
    padded = np.pad(x.astype("float64"), ((0, 0), (0, 0), (1, 1), (1, 1)))
    sums = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3)).sum((1, 4, 5))[:, None]
    np.testing.assert_allclose(result, np.maximum(sums + r, 0), rtol=1e-5, atol=1e-5)
    assert [how.split(":")[0] for how in recorder.computed.values()] == ["our template"]
    assert count_kernels(mod, TARGET, pipeline(TARGET)).total == 1


def test_a_permutation_that_others_read_too_is_a_kernel() -> None:
    def body(emit: Any, x: Any, r: Any) -> list[Any]:
        t = emit(R.permute_dims(r))
        return [R.add(emit(R.matmul(x, relax.const(np.ones((8, 6), "float32")))), t), R.exp(t)]

    mod = build(body, ((5, 8), "float32"), ((6, 5), "float32"))
    counted, stock = (count_kernels(mod, TARGET, p) for p in (pipeline(TARGET), None))
    assert counted.total <= stock.total and counted.memory_intensive <= stock.memory_intensive
