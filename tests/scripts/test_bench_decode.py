# SPDX-License-Identifier: Apache-2.0
"""The benchmark of a decoder's step needs a GPU. Its two forms of a step compute the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tvm
from tvm import relax

import tvm_stitch.relax
from cuda_emulator import lower
from stitch_testing.random.graphs import emulated_target

torch = pytest.importorskip("torch")
SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.mark.parametrize("bits", [0, 4])
def test_the_step_in_relax_is_that_in_torch(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from models.decoder_step import Decoder, as_relax, in_torch

    decoder = Decoder(2, 64, 4, 2, 96, 16, 40, 1, "float32", bits)
    generator = torch.Generator().manual_seed(0)
    params = []
    for name, shape, dtype in decoder.parameters():
        if dtype == "uint32":
            words = torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int32, generator=generator)
            params.append(words.view(torch.uint32))
        elif dtype == "int64":
            params.append(torch.tensor([5]))
        else:
            drawn = torch.randn(shape, generator=generator)
            params.append(drawn.abs() * 0.02 if name.endswith("_scale") else drawn * shape[-1] ** -0.5)
    machine = relax.VirtualMachine(tvm.compile(as_relax(decoder), "llvm"), tvm.cpu())
    scores, *caches = machine["main"](*[tvm.runtime.tensor(p.numpy().copy()) for p in params])
    wanted = in_torch(decoder)(*params)
    changed = [
        p for p, (name, _, _) in zip(params, decoder.parameters()) if name.startswith(("keys", "values"))
    ]
    for mine, theirs in zip([scores, *caches], [wanted, *changed], strict=True):
        torch.testing.assert_close(torch.from_numpy(mine.numpy()), theirs, rtol=1e-4, atol=1e-5)


def test_equal_layers_are_kernels_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer has two kernels, attention and all else, and more layers call the same ones."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from models.decoder_step import Decoder, as_relax

    target = emulated_target()

    def of(layers: int) -> tuple[int, int]:
        lowered = lower(
            as_relax(Decoder(layers=layers, words=8000)), target, tvm_stitch.relax.pipeline(target)
        )
        calls = tvm_stitch.explain(as_relax(Decoder(layers=layers, words=8000)), target).model
        assert calls is not None
        return len(calls.kernels), len(lowered.source)

    few, many = of(2), of(3)
    assert few[0] == 2 * 2 + 1 and many[0] == 2 * 3 + 1
    assert many[1] < 1.01 * few[1]


@pytest.mark.parametrize("arguments", [["--contenders", "stitched"], ["--contenders", "other"]])
def test_a_machine_without_a_gpu(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "bench_decode.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "no CUDA device" in done.stderr or "no contender other" in done.stderr
