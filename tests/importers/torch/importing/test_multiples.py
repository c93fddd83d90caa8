# SPDX-License-Identifier: Apache-2.0
"""Guards make extents multiples of numbers, and programs with such extents compile."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import interpolate, max_pool2d

import tvm_stitch
from tvm_stitch.importers.torch.importing import guards, multiples

AUTO = torch.export.Dim.AUTO


class UNet(torch.nn.Module):
    """Levels that halve an image, and join the doubled results with the images before."""

    def __init__(self, levels: int, mode: str | None) -> None:
        super().__init__()
        self.mode = mode
        self.twice = torch.nn.ConvTranspose2d(3, 3, 2, 2)
        self.mixed = torch.nn.ModuleList([torch.nn.Conv2d(6, 3, 1) for _ in range(levels)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for _ in self.mixed:
            kept.append(x)
            x = max_pool2d(x, 2).relu()
        for mix in self.mixed:
            x = interpolate(x, scale_factor=2, mode=self.mode) if self.mode else self.twice(x)
            x = mix(torch.cat([x, kept.pop()], 1))
        return x


class Windows(torch.nn.Module):
    """A softmax over windows of four rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(1, 3, x.shape[2] // 4, 4, x.shape[3]).softmax(3).view_as(x) + x


def exported(model: torch.nn.Module) -> Any:
    symbolic = {2: AUTO} if isinstance(model, Windows) else {2: AUTO, 3: AUTO}
    return torch.export.export(model.eval(), (torch.randn(1, 3, 16, 24),), dynamic_shapes=(symbolic,))


@pytest.mark.parametrize(
    ("model", "wanted"), [(UNet(1, None), [2, 2]), (UNet(2, None), [4, 4]), (Windows(), [4])]
)
def test_divisors(model: torch.nn.Module, wanted: list[int], tmp_path: Path) -> None:
    program = exported(model)
    assert sorted(multiples.multiples_of(program).values()) == wanted
    torch.export.save(program, path := tmp_path / "model.pt2")
    assert sorted(multiples.multiples_of(torch.export.load(path)).values()) == wanted


@pytest.mark.parametrize(
    ("model", "least"),
    [(UNet(1, None), 2), (UNet(2, "nearest"), 4), (UNet(2, "bilinear"), 4), (Windows(), 4)],
)
def test_programs_run_at_other_sizes(model: torch.nn.Module, least: int) -> None:
    compiled = tvm_stitch.compile(exported(model), "llvm")
    for size in ((16, 24), (8, 24)):
        x = torch.randn(1, 3, *size)
        torch.testing.assert_close(compiled(x), model(x).detach(), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=f"{least} \\* _"):
        compiled(torch.randn(1, 3, 9, 24))


A, B = "L['x'].size()[2]", "L['deep']['y'][0].size()[1]"
SYMBOLS = {("x", 2): "a", ("deep_y_0", 1): "b"}


@pytest.mark.parametrize(
    ("guard", "wanted"),
    [
        (f"{A} % 6 == 0", 6),
        (f"{A} == 4 * ({A} // 4) and {A} != 8", 4),
        (f"2 * ({A} // 4) == {A} // 2", 1),  # 0, 1, 4 and 5 remain of 8
        (f"({A} - 1) % 4 == 3", 4),
        (f"{B} // 3 * 3 == {B}", 3),
        (f"{A} == 64", 1),
        (f"1 + ({A} - 1) // 64 == 1", 1),  # not periodic: at most 64
        (f"{A} == {B} // 2 * 2", 1),
        (f"max(1, {A}) % 2 == 0", 1),
        (f"{A} * {A} % 2 == 0", 1),
        (f"{A} % 2 == 0 or {A} == 3", 1),
        (f"{A} % 65536 == 0", 1),
        ("L['z'].size()[0] % 2 == 0", 1),
        ("no guard", 1),
    ],
)
def test_guards(guard: str, wanted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Program:
        _guards_code = [guard]

    monkeypatch.setattr(multiples, "_symbols", lambda program: SYMBOLS)
    assert set(multiples.multiples_of(Program()).values()) == ({wanted} if wanted > 1 else set())


def test_a_program_without_guards() -> None:
    assert multiples.multiples_of(exported(torch.nn.ReLU())) == {}
    assert list(guards.comparisons("f(x) == ")) == []
    assert isinstance(next(guards.comparisons("a == b")), ast.Compare)
