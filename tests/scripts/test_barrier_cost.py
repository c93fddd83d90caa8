# SPDX-License-Identifier: Apache-2.0
"""The kernels whose barriers are timed run in the emulator and compile. Slope and table follow the times."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import barrier_cost
import pytest

from cuda_emulator import default_target, lower
from stitch_testing.planted import barriers

Setting = barrier_cost.Setting


def test_settings_that_fit_on_an_sm() -> None:
    found = barrier_cost.settings((1, 2, 4), (256, 512, 1024), (2, 8))
    assert len(found) == 3 * (3 + 3 + 2)
    assert not any(s.threads * s.blocks_per_sm > 2048 for s in found)
    assert {s.blocks(132) for s in found if s.cluster == 8} == {128, 264, 528}
    assert {s.blocks(132) for s in found if s.barrier == "grid"} == {132, 264, 528}


def test_small_kernels_run_in_the_emulator(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "--emulate --blocks-per-sm 1 2 --threads 64 --clusters 2 8".split()
    assert barrier_cost.main(arguments) == 0
    assert capsys.readouterr().out == "6 settings run in the emulator without a finding\n"


def test_a_kernel_that_skips_a_barrier_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = barrier_cost.barrier_loop
    monkeypatch.setattr(
        barrier_cost, "barrier_loop", lambda kind, count, *rest: real(kind, max(count - 1, 0), *rest)
    )
    with pytest.raises(AssertionError):
        barrier_cost.emulate(Setting("grid", 1, 64), 2, (0, 3))


def test_slope_and_table() -> None:
    assert barrier_cost.slope((0, 1, 10, 100), (3.0, 4.5, 18.0, 153.0)) == pytest.approx(1.5)
    costs = {Setting("grid", 2, 1024): 1.234, Setting("cluster", 2, 1024, 4): None}
    lines = barrier_cost.table(costs, (2, 4)).splitlines()
    assert lines[1].split() == ["threads", "blocks/SM", "grid", "cluster", "2", "cluster", "4"]
    assert lines[2].split() == ["1024", "2", "1.23", "-", "-"]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("setting", [Setting("grid", 2, 1024), Setting("cluster", 4, 512, 8)])
def test_kernels_compile_within_their_registers(setting: Setting, tmp_path: Path) -> None:
    source = lower(setting.module(100, 132), default_target()).source
    assert barriers(source, f"{setting.barrier}-barrier") == 1  # in a loop
    (tmp_path / "k.cu").write_text(source)
    command = ["nvcc", "-arch=sm_90", "-cubin", "-Xptxas", "-v", "-o", str(tmp_path / "k.cubin")]
    done = subprocess.run(
        [*command, str(tmp_path / "k.cu")], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "0 bytes spill stores" in done.stderr
