# SPDX-License-Identifier: Apache-2.0
"""Views, slices, repetitions, rolls and diagonals, with axes counted from the end and without elements."""

from __future__ import annotations

import torch

from tests.importers.torch.programs import compare, compiled, imported, refusal, same


def test_moved_data() -> None:
    compare(
        {
            "axes": lambda x: [
                x.permute(-1, 0, 1),
                x.squeeze(),
                x.squeeze(-1),
                x.squeeze((0, 2)),
                x.unsqueeze(-2),
            ],
            "turned": lambda x: [
                x.flip(-1, 0),
                x.roll(2, -2),
                x.roll((1, -3), (0, 1)),
                x.roll(3),
                x.movedim(0, -1),
            ],
            "repeated": lambda x: [
                x.repeat(2, 1, 3),
                x.repeat(2, 1, 1, 2),
                x.expand(2, -1, -1, 3),
                x.tile(2),
            ],
            "slices": lambda x: [x[:, -3:-1], x[:, 1::2], x[-1], x[:, -2], x[:, 2:100], x[:, 3:1]],
            "diagonals": lambda x: [
                x.squeeze().diagonal(),
                x.squeeze().diagonal(-1),
                x.squeeze().diagonal(2, -1, 0),
                torch.diag_embed(x.squeeze()[0]),
            ],
            "written": lambda x: [
                torch.slice_scatter(x, x[:, :2] * 2, 1, 1, 3),
                torch.slice_scatter(x, x[:, :2] * 2, 1, -4, None, 2),
                torch.select_scatter(x, x[:, 0] * 3, 1, -1),
                torch.diagonal_scatter(x.squeeze(), torch.zeros(3)),
            ],
            "strided": lambda x: [
                x.contiguous().as_strided((2, 3), (4, 1)),
                x.as_strided((3, 2), (1, 2), 1),
            ],
        },
        torch.randn(3, 4, 1),
    )


def test_no_elements() -> None:
    compare(
        {
            "views": lambda x: [
                x.roll(1, 0),
                x.repeat(2, 3),
                x.flip(0),
                x[:, 1:],
                x.expand(2, 3, 0),
                x.view(0, 3),
            ],
            "from some": lambda x: [torch.ones(4, 2)[4:], torch.ones(4, 2).repeat(0, 1)],
        },
        torch.zeros(3, 0),
    )


def test_borders_have_numbers_of_the_tensors_type() -> None:
    number = torch.nn.functional.pad
    compare(
        {
            "booleans": lambda b, u, x: [
                number(b, (1, 2), value=2),
                number(b, (0, 0, 1, 0)),
                number(b, (0, 0)),
            ],
            "bytes": lambda b, u, x: [number(u, (1, -1), value=200), number(u, (-1, 0, 2, 0), value=7.5)],
            "floats": lambda b, u, x: [number(x, (1, 2), value=-0.5), number(x, (-1, 1, 0, 2))],
        },
        torch.tensor([[True, False, True]]),
        torch.arange(6, dtype=torch.uint8).reshape(2, 3),
        torch.randn(2, 3),
    )


def test_a_view_behind_its_tensor_is_refused() -> None:
    def behind(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.as_strided.default(x[0] + 0, [2, 3], [3, 1], 1)

    assert "as_strided.default" in refusal(behind, torch.randn(2, 6)[:, :6])


def test_a_contiguous_view_of_symbolic_sizes() -> None:
    def viewed(x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0]
        return torch.as_strided(x, (rows, 2, 3), (6, 3, 1)) * 2

    dynamic = (({0: torch.export.Dim.DYNAMIC},),)
    run = compiled(imported(lambda x: [viewed(x)], torch.randn(4, 6), dynamic=dynamic))
    for rows in (2, 7):
        x = torch.randn(rows, 6)
        assert same(run(x)[0], viewed(x), 1e-6)
    turned = lambda x: [torch.as_strided(x, (6, x.shape[0]), (1, 6))]  # noqa: E731
    assert "as_strided.default" in refusal(turned, torch.randn(4, 6), dynamic=dynamic)


def test_slices_inside_a_symbolic_axis_have_pytorchs_extents() -> None:
    """TVM bounds each slice by its axis, so that two slices of equal extents have no known shape together."""

    def steps(x: torch.Tensor) -> list[torch.Tensor]:
        longer = torch.cat([x[:, :1] - 1, x], -1)
        return [longer[:, 1:] - longer[:, :-1], x[:, -3:], x[:, 1:5], x[:, : x.shape[1] - 1] * x[:, 1:]]

    mod = imported(steps, torch.randn(2, 7), dynamic=(({1: torch.export.Dim.DYNAMIC},),))
    assert all(field.shape is not None for field in mod["main"].ret_ty.fields)
    run = compiled(mod)
    for size in (7, 5, 12):
        x = torch.randn(2, size)
        assert all(same(got, want, 1e-6) for got, want in zip(run(x), steps(x), strict=True))


def test_symbolic_repetitions() -> None:
    def repeated(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [x.repeat(y.shape[0], 1), x.repeat(3, y.shape[0], 2)]

    mod = imported(
        repeated, torch.randn(2, 3), torch.randn(4, 1), dynamic=((None, {0: torch.export.Dim.DYNAMIC}),)
    )
    run = compiled(mod)
    for size in (4, 7):
        given = torch.randn(2, 3), torch.randn(size, 1)
        assert all(same(got, want, 0) for got, want in zip(run(*given), repeated(*given), strict=True))


def test_symbolic_sizes() -> None:
    length = torch.export.Dim("n", min=4, max=99)
    compare(
        {
            "rolled": lambda x: [
                x.roll(1, 0),
                x.roll(-7, 0),
                torch.roll(x, (1, 2), (0, 1)),
                x.roll(x.shape[0] - 1, 0),
            ],
            "padded": lambda x: [
                torch.nn.functional.pad(x, (1, 0, 0, -x.shape[0] % 8), value=2.0),
                torch.nn.functional.pad(x, (0, 0, 2 - x.shape[0] % 3, -1)),
            ],
            "diagonals": lambda x: [
                (x @ x.T).diagonal(),
                (x @ x.T).diagonal(2),
                x[:, :, None].diagonal(-1, 1, 0),
            ],
            "joined": lambda x: torch.einsum("ij,kj->ik", x, x),
        },
        torch.randn(8, 3),
        dynamic=(({0: length},),),
        others=[[torch.randn(rows, 3)] for rows in (4, 5, 13)],
    )
