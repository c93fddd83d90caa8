# SPDX-License-Identifier: Apache-2.0
"""The encoder layer: imported from PyTorch, equal to it, symbolic in batch and sequence."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from stitch_testing.reference.relax import evaluate
from tvm_stitch.testing.workloads import cases

torch = pytest.importorskip("torch")
encoder = pytest.importorskip("tvm_stitch.testing.workloads.encoder")


def matmuls(mod: tvm.IRModule) -> int:
    found: list[str] = []
    relax.analysis.post_order_visit(
        mod["main"], lambda e: found.append(e.op.name) if isinstance(e, relax.Call) else None
    )
    return found.count("relax.matmul")


@pytest.mark.parametrize("masked", [False, True])
def test_symbolic_module_equals_torch_at_every_size(masked: bool) -> None:
    mod, layer, _ = encoder.encoder_layer(2, 7, 24, 3, 40, symbolic=True, masked=masked)
    vm = relax.VirtualMachine(tvm.compile(mod, tvm.target.Target("llvm")), tvm.cpu())
    for batch, sequence in ((1, 1), (2, 7), (3, 1), (1, 16)):
        inputs = [torch.randn(batch, sequence, 24)]
        if masked:
            inputs.append(
                torch.zeros(batch, 1, 1, sequence).index_fill_(3, torch.tensor([sequence - 1]), -3.0)
            )
        with torch.no_grad():
            expected = layer(*inputs).numpy()
        arrays = [value.numpy() for value in inputs]
        np.testing.assert_allclose(evaluate(mod, arrays)[0], expected, rtol=2e-5, atol=2e-5)
        actual = vm["main"](*map(tvm.runtime.tensor, arrays)).numpy()
        np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-5)


def test_weights_are_seeded_constants() -> None:
    first, second, other = (encoder.encoder_layer(2, 3, 8, 2, 12, seed=seed)[0] for seed in (1, 1, 2))
    assert len(first["main"].params) == 1
    assert tvm_ffi.structural_equal(first, second) and not tvm_ffi.structural_equal(first, other)


def test_case_has_eight_matmuls_and_counts_its_weights() -> None:
    case = cases.encoder_layer(2, 5, 24, 3, 40)
    mod, layer, _ = encoder.encoder_layer(2, 5, 24, 3, 40)
    assert matmuls(mod) == case.matmuls == 8
    assert case.constant_bytes == 4 * sum(parameter.numel() for parameter in layer.parameters())


def test_heads_must_divide_hidden() -> None:
    with pytest.raises(ValueError, match="multiple of heads"):
        encoder.EncoderLayer(10, 3, 4)
