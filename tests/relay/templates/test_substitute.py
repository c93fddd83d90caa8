# SPDX-License-Identifier: Apache-2.0
"""Products and convolutions of Relay modules by our templates: right at every extent, in no more kernels than TVM's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import auto_scheduler, relay
from tvm.contrib import graph_executor
from tvm.runtime.vm import VirtualMachine

from stitch_testing.reference.values import mismatches
from stitch_testing.relay.count import count_kernels
from stitch_testing.relay.reference import evaluate
from tests.relay.modules import drawn, kernels, run_ahead_of_time
from tvm_stitch import StitchConfig
from tvm_stitch.records.decisions import decisions_of
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.relay import enable, explain
from tvm_stitch.relay.stitch_ops import TEMPLATE_ATTR
from tvm_stitch.relay.templates import substitute
from tvm_stitch.relay.templates.substitute import ComputeTemplates

F32 = "float32"
AVX2 = tvm.target.Target("llvm -mcpu=haswell")
TVM = StitchConfig(compute="tvm")
Arrays = dict[str, np.ndarray]


def module(*results: Any) -> tvm.IRModule:
    body = relay.Tuple(results) if len(results) > 1 else results[0]
    return tvm.IRModule.from_expr(relay.Function(relay.analysis.free_vars(body), body))


def built(
    mod: tvm.IRModule, params: Arrays, config: StitchConfig | None = None, level: int = 3, target: Any = AVX2
) -> tuple[Any, Recorder]:
    with tvm.transform.PassContext(opt_level=level), enable(config) as found:
        return relay.build(mod, target, params=params), found


def poisoned_run(lib: Any, inputs: Arrays) -> list[np.ndarray]:
    """Results in memory that held NaN before."""
    executor = graph_executor.GraphModule(lib["default"](tvm.cpu()))
    executor.set_input(**inputs)
    outputs = [executor.get_output(i) for i in range(executor.get_num_outputs())]
    for output in outputs:
        output.copyfrom(np.full(output.shape, np.nan, F32))
    executor.run()
    return [output.numpy() for output in outputs]


def check(result: np.ndarray, x: np.ndarray, w: np.ndarray) -> None:
    wide = x.astype("float64") @ w.astype("float64")
    bound = np.abs(x).astype("float64") @ np.abs(w).astype("float64")
    assert result.shape == wide.shape
    assert (np.abs(result - wide) <= 1e-6 * bound + 1e-30).all()


def checked(mod: tvm.IRModule, inputs: Arrays, params: Arrays, level: int = 3) -> tuple[Any, Recorder]:
    """Return a build, and check that its results are right, with no more kernels than TVM's own."""
    lib, found = built(mod, params, level=level)
    wrong = mismatches(poisoned_run(lib, inputs), evaluate(mod, inputs, params), {F32: (1e-4, 1e-5)})
    assert wrong == []
    with tvm.transform.PassContext(opt_level=level):
        stock = relay.build(mod, AVX2, params=params)
    assert count_kernels(lib).total <= count_kernels(stock).total
    return lib, found


SIZES = [
    (1, 1, 1),
    (1, 64, 33),
    (7, 5, 3),
    (8, 16, 32),
    (13, 17, 19),
    (64, 31, 100),
    (129, 3, 257),
    (3, 1100, 5),
]


@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=haswell"])
def test_weights(target: str) -> None:
    xs = {f"x{i}": drawn(m, k) for i, (m, k, n) in enumerate(SIZES)}
    ws = {f"w{i}": drawn(n, k, seed=1) for i, (m, k, n) in enumerate(SIZES)}
    pairs = [
        [relay.var(f"{v}{i}", shape=a[f"{v}{i}"].shape) for v, a in (("x", xs), ("w", ws))] for i in range(8)
    ]
    lib, found = built(module(*(relay.nn.dense(x, w) for x, w in pairs)), ws, target=target)
    assert len(found.computed) == 8 and all("weight packed" in how for how in found.computed.values())
    for i, result in enumerate(poisoned_run(lib, xs)):
        check(result, xs[f"x{i}"], ws[f"w{i}"].T)


def test_right_sides_as_they_lie() -> None:
    """Batches, of one matrix too, transposed or not on either side, and one that many share."""
    cases: list[tuple[Any, ...]] = []
    for b, m, k, n in ((3, 1, 4, 1), (2, 9, 5, 33), (1, 16, 16, 8), (2, 70, 9, 50)):
        cases += [((b, m, k), (b, k, n), False, False), ((b, m, k), (b, n, k), False, True)]
    cases += [((3, 5, 4), (1, 4, 7), False, False), ((2, 4, 5), (2, 4, 7), True, False)]
    results, inputs = [], {}
    for i, (left, right, a, b) in enumerate(cases):
        inputs |= {f"x{i}": drawn(*left), f"w{i}": drawn(*right, seed=1)}
        x, w = relay.var(f"x{i}", shape=left), relay.var(f"w{i}", shape=right)
        results.append(relay.nn.batch_matmul(x, w, transpose_a=a, transpose_b=b))
    lib, found = built(module(*results), {}, level=2)
    told = list(found.computed.values())
    assert len(told) == 10 and all("right side as it lies" in how for how in told)
    for i, (result, (_, _, a, b)) in enumerate(zip(poisoned_run(lib, inputs), cases)):
        x, w = inputs[f"x{i}"], inputs[f"w{i}"]
        check(result, x.transpose(0, 2, 1) if a else x, w.transpose(0, 2, 1) if b else w)


def gelu(x: Any) -> Any:
    return x * relay.const(0.5) * (relay.erf(x * relay.const(0.7071)) + relay.const(1.0))


def test_what_follows_is_computed_in_the_same_kernel() -> None:
    x, w, b, r = (
        relay.var(n, shape=s) for n, s in (("x", (13, 24)), ("w", (37, 24)), ("b", (37,)), ("r", (13, 37)))
    )
    heads = relay.transpose(relay.nn.dense(x, w), (1, 0))
    results = [
        gelu(relay.nn.bias_add(relay.nn.dense(x, w), b)),
        relay.nn.relu(relay.nn.dense(x, w) + r),
        heads,
    ]
    params = {"w": drawn(37, 24), "b": drawn(37)}
    for result in results:
        mod, inputs = module(result), {"x": drawn(13, 24), "r": drawn(13, 37)}
        names = {str(param.name_hint) for param in mod["main"].params}
        lib, found = checked(
            mod,
            {n: a for n, a in inputs.items() if n in names},
            {n: a for n, a in params.items() if n in names},
        )
        (name,) = found.computed
        assert kernels(lib) == [name] and "dense" in name and not found.plans


def test_an_epilogue_that_takes_the_whole_result() -> None:
    x, w = relay.var("x", shape=(13, 24)), relay.var("w", shape=(37, 24))
    func = relay.Function([x, w], relay.nn.softmax(relay.nn.dense(x, w)))
    func = func.with_attr("Primitive", tvm.tir.IntImm("int32", 1)).with_attr(TEMPLATE_ATTR, "it")
    weight, y = drawn(37, 24), relay.var("y", shape=(13, 24))
    mod = tvm.IRModule.from_expr(relay.Function([y], relay.Call(func, [y, relay.const(weight)])))
    tiled = ComputeTemplates(AVX2)(relay.transform.InferType()(mod))
    computed = decisions_of(tiled).computed
    lib = relay.build(tiled, AVX2)
    assert kernels(lib) == list(computed)
    scores = drawn(13, 24).astype("float64") @ weight.T
    expected = np.exp(scores - scores.max(1, keepdims=True))
    (result,) = poisoned_run(lib, {"y": drawn(13, 24)})
    np.testing.assert_allclose(result, expected / expected.sum(1, keepdims=True), rtol=1e-4, atol=1e-6)


CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "plain": {"w": (10, 6, 3, 3)},
    "pointwise": {"w": (10, 6, 1, 1), "padding": (0, 0)},
    "strided": {"w": (5, 6, 3, 3), "strides": (2, 2)},
    "dilated": {"w": (5, 6, 3, 3), "dilation": (2, 2), "padding": (2, 2)},
    "grouped": {"w": (4, 3, 3, 3), "groups": 2},
    "depthwise": {"w": (6, 1, 3, 3), "groups": 6},
}


def convolved(x: Any, name: str, options: dict[str, Any]) -> Any:
    options = {"padding": (1, 1), **options}
    shape = options.pop("w")
    weight = relay.var(name, shape=shape)
    return relay.nn.conv2d(x, weight, channels=shape[0], kernel_size=shape[2:], **options)


def test_convolutions() -> None:
    """Their channels are moved innermost. A bias and an activation are computed in their kernels."""
    shapes = {name: options["w"] for name, options in CONVOLUTIONS.items()}
    params = {name: drawn(*shape) for name, shape in shapes.items()}
    x = relay.var("x", shape=(2, 6, 7, 9))
    results = []
    for name, options in CONVOLUTIONS.items():
        params[f"b{name}"] = drawn(shapes[name][0], 1, 1)
        y = convolved(x, name, options) + relay.var(f"b{name}", shape=(shapes[name][0], 1, 1))
        results.append(relay.nn.relu(y))
    mod, inputs = module(*results), {"x": drawn(2, 6, 7, 9)}
    lib, found = built(mod, params)
    assert mismatches(poisoned_run(lib, inputs), evaluate(mod, inputs, params), {F32: (1e-4, 1e-5)}) == []
    assert len(found.computed) == 6 and all("weight packed" in how for how in found.computed.values())
    assert sum("conv2d" in name for name in kernels(lib)) == 6


def test_convolutions_take_no_more_kernels_than_tvms() -> None:
    """Of layouts that change before the first one and behind the last one alone."""
    first, second = CONVOLUTIONS["plain"], {"w": (10, 1, 3, 3), "groups": 10}
    y = relay.nn.relu(convolved(relay.var("x", shape=(1, 6, 5, 5)), "v", first))
    mod = module(relay.nn.relu(convolved(y, "w", second) + y))
    params = {"v": drawn(*first["w"]), "w": drawn(*second["w"])}
    checked(mod, {"x": drawn(1, 6, 5, 5)}, params)


def test_without_a_change_of_layouts_convolutions_are_tvms() -> None:
    x, options = relay.var("x", shape=(1, 6, 5, 5)), CONVOLUTIONS["plain"]
    mod, params = module(convolved(x, "w", options)), {"w": drawn(*options["w"])}
    _, found = checked(mod, {"x": drawn(1, 6, 5, 5)}, params, level=2)
    assert list(found.computed.values()) == [
        "TVM: its channels are not innermost: convolutions of images of static size are converted"
    ]


def two_products() -> tvm.IRModule:
    x, w, v = (relay.var(n, shape=s) for n, s in (("x", (9, 16)), ("w", (20, 16)), ("v", (6, 20))))
    return module(relay.nn.dense(relay.nn.softmax(relay.nn.relu(relay.nn.dense(x, w))), v))


PARAMS = {"w": drawn(20, 16), "v": drawn(6, 20)}


def expected(x: np.ndarray) -> np.ndarray:
    (result,) = evaluate(two_products(), {"x": x}, PARAMS)
    return result


def test_other_executors(tmp_path: Path) -> None:
    x = drawn(9, 16)
    with enable():
        ahead = relay.build(two_products(), AVX2, params=PARAMS, executor=relay.backend.Executor("aot"))
        executable = relay.vm.compile(two_products(), AVX2, params=PARAMS)
    (result,) = run_ahead_of_time(ahead, tmp_path, x)
    other = VirtualMachine(executable, tvm.cpu()).invoke("main", tvm.nd.array(x)).numpy()
    for found in (result, other):
        np.testing.assert_allclose(found, expected(x), rtol=1e-4, atol=1e-5)


def test_on_request_tvm_computes_all() -> None:
    lib, found = built(two_products(), PARAMS, TVM)
    assert not found.computed and not any("tiled" in name for name in kernels(lib))
    assert sum("dense_pack" in name for name in kernels(lib)) == 2


@pytest.mark.parametrize("level", [2, 3])
def test_explain_says_what_a_build_does(level: int) -> None:
    with tvm.transform.PassContext(opt_level=level):
        report = explain(two_products(), AVX2, PARAMS)
    lib, found = built(two_products(), PARAMS, level=level)
    assert found.report() == report and sorted(report.computed) == [
        n for n in sorted(kernels(lib)) if "tiled" in n
    ]
    assert (
        "Compute-intensive operators:\n  tvmgen_default_tiled_dense_relu: our template: 5 x 16 tiles"
        in report.verbose()
    )


@pytest.mark.parametrize("level", [2, 3])
def test_an_unbound_weight_is_read_as_it_lies(level: int) -> None:
    _, found = built(two_products(), {"w": PARAMS["w"]}, level=level)
    told = [how.rsplit(", ", 1)[1] for how in found.computed.values()]
    assert sorted(told) == ["right side as it lies", "weight packed"]


def test_a_transposition_before_a_product_is_no_kernel() -> None:
    x, w = relay.var("x", shape=(2, 40, 9)), relay.var("w", shape=(2, 11, 40))
    y = relay.nn.batch_matmul(relay.transpose(x, (0, 2, 1)), w)
    inputs = {"x": drawn(2, 40, 9), "w": drawn(2, 11, 40, seed=1)}
    lib, found = checked(module(y), inputs, {})
    assert count_kernels(lib).total == 1 and "".join(found.computed.values()).startswith("our template")


def test_an_unbound_weight_of_a_convolution_says_what_to_do() -> None:
    x, w = relay.var("x", shape=(1, 8, 16, 16)), relay.var("w", shape=(8, 8, 3, 3))
    _, found = built(
        module(relay.nn.conv2d(x, w, padding=(1, 1), kernel_size=(3, 3), channels=8)), {}, level=3
    )
    (why,) = found.computed.values()
    assert why.startswith("TVM: ") and why.endswith("bind it by params")


def test_equal_products_share_a_kernel_and_a_weight() -> None:
    x, w = relay.var("x", shape=(16, 16)), relay.var("w", shape=(16, 16))
    y = relay.nn.softmax(relay.nn.dense(relay.nn.softmax(relay.nn.dense(x, w)), w))
    lib, found = built(module(y), {"w": drawn(16, 16)})
    (name,) = found.computed
    assert kernels(lib).count(name) == 2 and len(lib.get_params()) == 1


def test_a_constant_and_a_variable_have_kernels_of_their_own() -> None:
    x, w, v = (relay.var(n, shape=(7, 7)) for n in "xwv")
    y = relay.nn.matmul(relay.nn.matmul(x, w), v)
    params, inputs = {"w": drawn(7, 7)}, {"x": drawn(7, 7), "v": drawn(7, 7, seed=2)}
    lib, found = built(module(y), params)
    assert sorted(how.split(", ")[1] for how in found.computed.values()) == [
        "right side as it lies",
        "weight packed",
    ]
    check(poisoned_run(lib, inputs)[0], inputs["x"] @ params["w"], inputs["v"])


def test_layout_rewriters_find_the_weights_again(tmp_path: Path) -> None:
    """Ansor's takes all primitive functions apart once they have been stitched."""
    (tmp_path / "log.json").touch()
    options = {"relay.backend.use_auto_scheduler": True}
    with (
        auto_scheduler.ApplyHistoryBest(str(tmp_path / "log.json")),
        tvm.transform.PassContext(opt_level=3, config=options),
        enable(StitchConfig(compute="templates")) as found,
    ):
        lib = relay.build(two_products(), AVX2, params=PARAMS)
    assert len(found.computed) == 2 and not any("transpose" in name for name in kernels(lib))
    x = drawn(9, 16)
    np.testing.assert_allclose(poisoned_run(lib, {"x": x})[0], expected(x), rtol=1e-4, atol=1e-5)


def test_a_failure_costs_its_own_product(monkeypatch: pytest.MonkeyPatch) -> None:
    original = substitute.build

    def refuse(kernel: Any, target: Any) -> Any:
        if "relu" in str(kernel.attrs["global_symbol"]):
            raise tvm.TVMError("no such kernel")
        return original(kernel, target)

    monkeypatch.setattr(substitute, "build", refuse)
    lib, found = built(two_products(), PARAMS)
    assert not found.declined and sorted(how[:5] for how in found.computed.values()) == ["TVM: ", "our t"]
    assert "no such kernel" in found.computed["tiled_dense_relu"]
    x = drawn(9, 16)
    np.testing.assert_allclose(poisoned_run(lib, {"x": x})[0], expected(x), rtol=1e-4, atol=1e-5)


def test_an_interrupt_ends_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(substitute, "emit_anchored", interrupt)
    with pytest.raises(KeyboardInterrupt):
        built(two_products(), PARAMS)
