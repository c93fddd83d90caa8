# SPDX-License-Identifier: Apache-2.0
"""The operators of complex tensors: those that move data, those that are refused, and numbers of parts alone."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.importers.torch.complexes.test_arithmetic import numbers  # noqa: E402
from tests.importers.torch.programs import compare, imported, refusal  # noqa: E402
from tvm_stitch.importers.torch.complexes.table import complex_operators  # noqa: E402
from tvm_stitch.importers.torch.converters import own_converters  # noqa: E402
from tvm_stitch.importers.torch.importing.table import THEIRS  # noqa: E402

F = torch.nn.functional


def test_data_is_moved_in_both_parts() -> None:
    compare(
        {
            "views": lambda x, r: [
                x.reshape(6, 2),
                x.T,
                x[:, 1:],
                x[..., None],
                x[0],
                x.expand(2, 3, 4),
                x[None, 0],
            ],
            "copies": lambda x, r: [
                x.clone(),
                x.roll(1, 0),
                x.flip(1),
                x.repeat(2, 1),
                x.tril(),
                x.diagonal(),
            ],
            "joined": lambda x, r: [
                torch.cat([x, r, x]),
                torch.stack([x, r], 1),
                *x.split(3, 1),
                *x.unbind(0),
            ],
            "read": lambda x, r: [
                x[[2, 0]],
                x[r > 0],
                x.index_select(1, torch.tensor([3, 1])),
                x.unfold(1, 2, 1),
            ],
            "chosen": lambda x, r: [
                torch.where(r > 0, x, r),
                torch.where(r > 0, x, 2j),
                x.masked_fill(r > 0, 1 + 1j),
            ],
            "padded": lambda x, r: [F.pad(x, (1, 2)), F.pad(x, (1, 0), value=1.5)],
            "summed": lambda x, r: [x.sum(), x.sum(0), x.mean(1, keepdim=True), x.cumsum(1)],
            "filled": lambda x, r: [
                torch.zeros_like(x),
                torch.ones_like(x),
                torch.full((2,), 1 - 2j),
                x.new_ones(2),
            ],
            "norms": lambda x, r: [torch.linalg.vector_norm(x, dim=0), torch.linalg.vector_norm(x, 1)],
        },
        numbers(3, 4),
        numbers(3, 4).real.contiguous(),
    )


def test_data_is_written_in_both_parts() -> None:
    def written(x: torch.Tensor, r: torch.Tensor) -> list[torch.Tensor]:
        some, others = x.clone(), x.clone()
        some[0], others[:, ::2] = r[1], 1 - 1j
        at = torch.tensor([[2, 0, 1, 1]])
        return [some, others, x.scatter(0, at, r.to(x.dtype)), x.scatter_add(0, at, x[:1])]

    compare({"written": written}, numbers(3, 4), numbers(3, 4).real.contiguous())


def test_a_part_of_a_view_is_the_part() -> None:
    text = imported(lambda x, y: torch.complex(x, y).imag * 2, torch.ones(3), torch.ones(3)).script()
    assert "take" not in text and "squeeze" not in text


def test_others_are_refused_by_name() -> None:
    text = refusal(lambda x: [x.sqrt(), x.prod(), x.real.sqrt(), x.tanh().abs()], numbers(3))
    for name in ("sqrt.default (sqrt)", "prod.default", "tanh.default"):
        assert f"{name}" in text
    assert text.count("of complex numbers is not imported") == 3


def test_branches_with_complex_operands_are_refused() -> None:
    def branched(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.real.sum() > 0, lambda y: y * 2, lambda y: y * 3, (x,)).real

    assert "cond" in refusal(branched, numbers(3))


def test_every_operator_that_moves_data_has_a_converter() -> None:
    from tvm_stitch.importers.torch.complexes.table import _OF_PARTS

    assert set(_OF_PARTS) <= set(own_converters()) | THEIRS
    assert set(_OF_PARTS) <= complex_operators()
