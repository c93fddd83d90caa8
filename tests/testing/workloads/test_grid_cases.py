# SPDX-License-Identifier: Apache-2.0
"""The workloads with reductions across rows: right through stock TVM, sized as stated, and what they promise."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from tvm import relax

from stitch_testing.reference.bounds import evaluate_bounds, violations
from stitch_testing.reference.relax import evaluate, mismatches
from tests.testing.workloads.test_cases import run_stock
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.testing.workloads import grid_cases
from tvm_stitch.testing.workloads.grid_case import GridCase

SMALL = grid_cases.grid_cases("test")
#: Made of primitives only, so that bounds exist.
PRIMITIVE = [case for case in SMALL if case.name not in ("batch_norm_training_nchw", "cross_entropy")]


def label(case: GridCase) -> str:
    return case.label


@pytest.mark.parametrize("case", SMALL, ids=label)
def test_stock_llvm_agrees_with_the_reference(case: GridCase) -> None:
    mod, inputs = case.build(), case.inputs(np.random.default_rng(1))
    outputs = run_stock(mod, inputs)
    expected = evaluate(mod, inputs)
    assert mismatches(outputs, expected, case.tolerance) == []
    assert [(out.shape, str(out.dtype)) for out in outputs] == [(s.shape, s.dtype) for s in case.results]
    assert [(x.shape, str(x.dtype)) for x in inputs] == [(s.shape, s.dtype) for s in case.arguments]
    for place, out in enumerate(outputs):  # every output is compared sharply enough to see 1%
        spoiled = [
            *outputs[:place],
            np.asarray(out * np.float32(1.01) + np.float32(0.001)),
            *outputs[place + 1 :],
        ]
        assert len(mismatches(spoiled, expected, case.tolerance)) == 1


@pytest.mark.parametrize("case", PRIMITIVE, ids=label)
def test_stock_results_lie_inside_the_bounds(case: GridCase) -> None:
    mod, inputs = case.build(), case.inputs(np.random.default_rng(2))
    assert violations(run_stock(mod, inputs), evaluate_bounds(mod, inputs)) == []


@pytest.mark.parametrize("case", SMALL, ids=label)
def test_recorded_stock_kernels(case: GridCase) -> None:
    assert count_kernels(case.build(), "llvm").memory_intensive == case.stock_kernels


@pytest.mark.parametrize("case", SMALL, ids=label)
def test_inputs_come_from_the_domains(case: GridCase) -> None:
    assert len(case.domains) == len(case.arguments)
    for x, domain in zip(case.inputs(np.random.default_rng(3)), case.domains, strict=True):
        if domain.kind == "normal":
            spread = domain.high / np.sqrt(x.size)
            assert abs(float(x.mean()) - domain.low) < 6 * spread
        else:
            assert x.min() >= domain.low and x.max() < domain.high


def test_layer_norm_backward_is_the_gradient_of_layer_norm() -> None:
    torch = pytest.importorskip("torch")
    case = grid_cases.layer_norm_backward(9, 40)
    x, dy, gamma = (torch.from_numpy(a).double() for a in case.inputs(np.random.default_rng(5)))
    x.requires_grad_(), gamma.requires_grad_()
    beta = torch.zeros(40, dtype=torch.float64, requires_grad=True)
    y = torch.nn.functional.layer_norm(x, (40,), gamma, beta, eps=grid_cases.EPSILON)
    wanted = torch.autograd.grad(y, (x, gamma, beta), dy)
    found = evaluate(case.build(), [a.detach().numpy().astype("float32") for a in (x, dy, gamma)])
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-9, atol=1e-9)


def test_clip_adam_is_torch_with_clipped_gradients() -> None:
    torch = pytest.importorskip("torch")
    shapes, adam = [(3, 4), (5,)], grid_cases.Adam(step=1)
    case = grid_cases.clip_adam(shapes, adam)
    rng = np.random.default_rng(6)
    gradients, _, _, values = (case.inputs(rng)[at * 2 : at * 2 + 2] for at in range(4))
    zeros = [np.zeros(shape, "float32") for shape in shapes]
    new = evaluate(case.build(), [*gradients, *zeros, *zeros, *values])
    parameters = [torch.nn.Parameter(torch.from_numpy(p).double()) for p in values]
    for p, g in zip(parameters, gradients, strict=True):
        p.grad = torch.from_numpy(g).double()
    norm = torch.nn.utils.clip_grad_norm_(parameters, adam.max_norm(17))
    assert norm > adam.max_norm(17)
    torch.optim.Adam(parameters, lr=adam.rate, betas=(adam.beta1, adam.beta2), eps=adam.epsilon).step()
    for a, p in zip(new[4:], parameters, strict=True):
        np.testing.assert_allclose(a, p.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_cross_entropy_and_batch_norm_keep_relax_operators() -> None:
    names: Counter[str] = Counter()
    for case in SMALL:
        relax.analysis.post_order_visit(
            case.build()["main"],
            lambda e: names.update([e.op.name]) if isinstance(e, relax.Call) else None,
        )
    assert names["relax.nn.batch_norm"] == names["relax.nn.nll_loss"] == names["relax.nn.log_softmax"] == 1
    assert sum(count for name, count in names.items() if name.startswith("relax.nn")) == 3


def test_figure_7_reads_power_along_the_other_axis() -> None:
    case = grid_cases.figure7(6, 5, 4)
    p1, p2, p3 = case.inputs(np.random.default_rng(7))
    power = ((p1 + p2[:, None]).sum(1, dtype=np.float64) / p2) ** 0.7
    wanted = np.broadcast_to(power * (p3 / power).sum(0), (4, 6))
    (found,) = evaluate(case.build(), [p1, p2, p3])
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_gpu_sizes_are_the_published_ones() -> None:
    found = {case.label: case for case in grid_cases.grid_cases("gpu")}
    assert len(found) == len(grid_cases.grid_cases("gpu"))
    for wanted in (
        "layer_norm_backward<65536,768>",
        "layer_norm_backward<4096,768>",
        "batch_norm_training<131072,256>",
        "batch_norm_training<8192,256>",
        "batch_norm_training_nchw<32,64,56,56>",
        "cross_entropy<64,30000>",
        "row_sum<750000,32>",
        "column_sum<262144,256>",
        "clip_adam<1,100000000>",
    ):
        assert wanted in found
    (many,) = (case for case in found.values() if case.name == "clip_adam_tensors")
    assert many.sizes["tensors"] == 20
    assert len({spec.shape for spec in many.arguments}) > 6 and len(many.arguments) == 80
    assert found["clip_adam<1,100000000>"].bytes_least() == 7 * 400_000_000
    names = {case.name for case in SMALL}
    assert names == {case.name for case in found.values()}
    with pytest.raises(ValueError, match="choose 'test', 'blocks' or 'gpu'"):
        grid_cases.grid_cases("cpu")
    with pytest.raises(ValueError, match="at least one shape"):
        grid_cases.clip_adam([])
