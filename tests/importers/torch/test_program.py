# SPDX-License-Identifier: Apache-2.0
"""The importer of exported programs: branches, refusals, options."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import tvm
from tvm import relax

from tests.importers.torch.programs import Called, compare, compiled, imported, refusal, same


def branching(x: Any, y: Any) -> Any:
    def yes(x: Any, y: Any) -> Any:
        return torch.softmax(x * 2.5, -1) + y

    def no(x: Any, y: Any) -> Any:
        return (x - y).relu() + (x // 2)

    return torch.cond(x.sum() > 0, yes, no, (x, y)) * 2


def test_branches() -> None:
    x, y = torch.rand(4, 5), torch.rand(4, 5)
    mod = imported(branching, x, y)
    others = [mod[gvar] for gvar in mod.get_global_vars() if gvar.name_hint != "main"]
    assert len(others) == 2 and not any("global_symbol" in (f.attrs or {}) for f in others)
    assert all(isinstance(f.body.blocks[0], relax.DataflowBlock) for f in others)
    run = compiled(mod)
    for given in (x, -x):
        assert same(run(given, y)[0], Called(branching)(given, y), 1e-6)


def test_loops_are_imported() -> None:
    def loop(x: Any) -> Any:
        return torch._higher_order_ops.while_loop(
            lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x)
        )

    x = torch.randn(3)
    assert same(compiled(imported(loop, x))(x)[1], 8 * x, 1e-6)


def test_maps_are_refused_by_name() -> None:
    def mapped(x: Any) -> Any:
        from functorch.experimental.control_flow import map as torch_map

        return torch_map(lambda row: row.sin(), x)

    text = refusal(mapped, torch.randn(3, 4))
    assert "map" in text and "onnx" not in text.lower() and "unrolls" in text


def test_all_refused_operators_are_named_at_once() -> None:
    @torch.library.custom_op("tests_of_programs::blurred", mutates_args=())
    def blurred(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    blurred.register_fake(torch.empty_like)

    def several(x: Any) -> Any:
        return torch.rand_like(x) + torch.linalg.qr(x)[0] + torch.ops.tests_of_programs.blurred(x)

    text = refusal(several, torch.randn(3, 3))
    assert "rand_like.default (rand_like): it draws random numbers" in text
    assert "linalg_qr.default" in text and "decompositions of matrices" in text
    assert "blurred.default" in text and "custom_convert_map" in text


def test_dropout_in_training_is_refused() -> None:
    text = refusal(torch.nn.Dropout(0.5).train(), torch.randn(3))
    assert "draws random numbers" in text and "model.eval()" in text


def test_operators_of_complex_numbers_are_refused_by_name() -> None:
    text = refusal(lambda x: [x.to(torch.complex64).tanh(), torch.linalg.qr(x)[0]], torch.randn(3, 3))
    assert "tanh.default (tanh): tanh.default of complex numbers is not imported" in text
    assert "decompositions of matrices" in text


def test_options() -> None:
    linear = torch.nn.Linear(3, 2).eval()
    mod = imported(linear, torch.randn(1, 3), keep_params_as_input=True, unwrap_unit_return_tuple=True)
    assert len(mod["main"].params) == 3 and isinstance(mod["main"].ret_ty, relax.TensorType)
    with pytest.raises(ValueError, match="state must be"):
        imported(linear, torch.randn(1, 3), state="neither")


def test_differences_as_gpt_2_takes_them() -> None:
    compare(
        {"diff": lambda x, i: [torch.diff(x), torch.diff(i, prepend=i[:1] - 1), torch.diff(x, n=2, dim=0)]},
        torch.randn(4, 5),
        torch.tensor([0, 1, 2, 0, 1]),
    )


def test_modules_are_tvms() -> None:
    assert isinstance(imported(lambda x: x + 1, torch.randn(2)), tvm.IRModule)
