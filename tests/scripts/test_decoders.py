# SPDX-License-Identifier: Apache-2.0
"""Steps of decoders: errors next to PyTorch's, rows that are wrong, and the tables."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import cached_step  # noqa: E402
from cached_step import CachedStep  # noqa: E402
from decoding import measure  # noqa: E402
from decoding.measure import Row, Wide, measured  # noqa: E402

from scripts import decoders  # noqa: E402
from scripts.decoders import logged, problems, report  # noqa: E402
from tests.examples.tiny import Cache, Tiny  # noqa: E402

ROW = Row("llama", "float32", 1, False, {"llvm": (4, 9), "CUDA": (3, 9)}, 2e-7, 1.9e-7)


class _Decoder:
    """The decoder that needs no transformers."""

    name, encoded = "tiny", False

    def step(self, dtype: Any, length: int) -> CachedStep:
        return CachedStep(Tiny().eval().requires_grad_(False).to(dtype), length, scores=0)


def test_a_row_that_is_worse_than_stock_or_pytorch() -> None:
    assert problems(ROW) == []
    assert problems(replace(ROW, kernels={"llvm": (9, None), "CUDA": (3, 9)})) == []
    assert problems(replace(ROW, error=2.4e-7)) == ["1.26 times PyTorch's error"]
    assert problems(replace(ROW, kernels={"llvm": (9, 9), "CUDA": (10, 9)})) == [
        "10 kernels on CUDA, and TVM has 9"
    ]


def test_tables_have_the_last_row_of_each_step(tmp_path: Path) -> None:
    log, later = tmp_path / "log.jsonl", replace(ROW, error=1.9e-7)
    rows = [ROW, replace(ROW, symbolic=True), later]
    log.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows))
    assert logged(log) == [later, rows[1]]
    shown = report(logged(log))
    assert "| `llama` | float32 | 1 | 9 | 4 | 9 | 3 | 1.9e-07 | 1.9e-07 | 1.00 |" in shown
    assert shown.index("static") < shown.index("symbolic") and len(shown.splitlines()) == 11


def test_parts_in_float32_are_computed_in_float64() -> None:
    x = torch.rand(5, dtype=torch.float64)
    with Wide():
        for got in (
            x.float(),
            x.to(torch.float32),
            torch.softmax(x, 0, dtype=torch.float32),
            x.type(torch.float32),
        ):
            assert got.dtype == torch.float64
        assert torch.equal(x.float(), x) and x.half().dtype == torch.float16
    assert x.float().dtype == torch.float32


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
def test_a_step_is_measured(symbolic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_step, "cache_around", Cache)
    monkeypatch.setattr(measure, "VOCABULARY", 29)
    monkeypatch.setattr(measure, "DRAWS", 2)
    row = measured(_Decoder(), "float32", 3, symbolic)
    assert all(stock is not None and 0 < own < stock for own, stock in row.kernels.values())
    assert 1e-9 < row.error < 1e-6 and 1e-9 < row.torch_error < 1e-6 and row.symbolic == symbolic


def test_a_wrong_result_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_step, "cache_around", Cache)
    monkeypatch.setattr(measure, "VOCABULARY", 29)
    step = _Decoder().step(torch.float32, 40)

    def compiled(*given: Any) -> list[Any]:
        """Compute the step, but leave the last cache as it was."""
        ids, position, *caches = (torch.from_dlpack(each).clone() for each in given)
        last = caches[-1].clone()
        results = step.computed(ids, position, caches)
        return [*results, *caches[:-1], last]

    with pytest.raises(ValueError, match="an error is"):
        measure.totals([measure.squares(step, compiled, 2, seed) for seed in (0, 1)])


@pytest.mark.parametrize(
    ("arguments", "text"), [(["--only", "x"], "no decoder x"), (["--dtypes", "int8"], "no type int8")]
)
def test_wrong_options_are_refused(
    arguments: list[str], text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(decoders, "_import_torchvision", lambda: None)
    monkeypatch.setitem(__import__("sys").modules, "transformers", object())
    with pytest.raises(SystemExit) as ended:
        decoders.main(arguments)
    assert ended.value.code == 2 and text in capsys.readouterr().err


def test_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(SystemExit) as ended:
        decoders.main([])
    assert ended.value.code == 2 and "pip install transformers" in capsys.readouterr().err


def test_kernels_alone_are_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measure, "counted", lambda decoder, dtype, tokens, symbolic: 7 + tokens)
    assert decoders._count([_Decoder()], [("float32", 1, False), ("bfloat16", 4, True)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "tiny\tfloat32\t1\tstatic\t8",
        "tiny\tbfloat16\t4\tsymbolic\t11",
    ]
