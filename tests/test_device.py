# SPDX-License-Identifier: Apache-2.0
"""Devices from targets."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tvm

from tvm_stitch.config import StitchConfig
from tvm_stitch.device import GPUS, device_model


@pytest.mark.parametrize(
    ("arch", "name"),
    [
        ("sm_120", "rtx5090"),
        ("sm_103a", "b200"),
        ("sm_100", "b200"),
        ("sm_90", "h200"),
        ("sm_90a", "h200"),
        ("sm_89", "rtx4090"),
        ("sm_87", "orin"),
        ("sm_86", "rtx3090"),
        ("sm_80", "a100"),
        ("sm_75", "t4"),
        ("sm_70", "v100"),
    ],
)
def test_the_architecture_picks_the_model(arch: str, name: str) -> None:
    assert device_model({"kind": "cuda", "arch": arch}).name == name


class Present:
    """A CUDA device of this machine, as TVM tells of it."""

    exist = True
    compute_version = "9.0"
    multi_processor_count = 114


@pytest.mark.parametrize(
    ("arch", "config", "expected"),
    [
        ("sm_90", None, 114),
        ("sm_90a", StitchConfig(), 114),
        ("sm_90", StitchConfig(multiprocessors=20), 20),
        ("sm_90", StitchConfig(multiprocessors=144), 144),
        ("sm_80", None, 108),
        ("sm_61", None, 40),
    ],
)
def test_multiprocessors_are_those_asked_for_or_of_the_device_here_or_the_usual_ones(
    arch: str, config: StitchConfig | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tvm, "cuda", lambda _: Present())
    assert device_model({"kind": "cuda", "arch": arch}, config).sms == expected


def test_unknown_architectures_get_the_most_careful_limits() -> None:
    model = device_model({"kind": "cuda", "arch": "sm_61"})
    assert model.shared_per_block == min(g.shared_per_block for g in GPUS.values())
    assert model.threads_per_sm == min(g.threads_per_sm for g in GPUS.values())
    assert model.name == "unknown GPU"


@pytest.mark.parametrize("name", GPUS)
def test_limits_are_consistent(name: str) -> None:
    gpu = GPUS[name]
    assert (
        gpu.is_gpu and gpu.warp == 32 and gpu.max_threads_per_block == 1024 and gpu.registers_per_sm == 65536
    )
    assert 48 * 1024 <= gpu.shared_per_block <= gpu.shared_per_sm
    assert gpu.threads_per_sm % gpu.warp == 0 and gpu.l2_bytes >= 4 << 20 and gpu.bandwidth > 1e11


def test_h200_as_its_datasheet_says() -> None:
    h200 = GPUS["h200"]
    assert (h200.sms, h200.shared_per_block, h200.bandwidth) == (132, 227 * 1024, 4.8e12)


def test_what_the_configuration_takes_from_a_device() -> None:
    h200, without = GPUS["h200"], StitchConfig(clusters=False)
    assert (
        h200.configured(without) == replace(h200, max_cluster=1) and h200.configured(StitchConfig()) is h200
    )
    assert GPUS["a100"].configured(without) is GPUS["a100"]


def test_only_hopper_has_clusters() -> None:
    assert {name for name, gpu in GPUS.items() if gpu.max_cluster > 1} == {"h200", "h100"}
    assert all(gpu.gpc_sms * (gpu.sms // gpu.gpc_sms) <= gpu.sms for gpu in GPUS.values() if gpu.gpc_sms)
    assert all(bool(gpu.gpc_sms) == (gpu.max_cluster > 1) for gpu in GPUS.values())


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ({"kind": "cuda", "arch": "sm_90"}, True),
        ({"kind": "cuda", "arch": "sm_120a"}, True),
        ({"kind": "cuda", "arch": "sm_61"}, True),
        ({"kind": "cuda", "arch": "sm_52"}, False),
        ("vulkan", False),
        ("llvm", False),
    ],
)
def test_which_devices_have_grid_barriers(target: object, expected: bool) -> None:
    assert device_model(target).cooperative == expected


def test_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "3")
    model = device_model("llvm")
    assert not model.is_gpu and model.sms == 3 and model.shared_per_block == 32 * 1024
    monkeypatch.delenv("TVM_NUM_THREADS")
    assert device_model(tvm.target.Target("llvm")).sms >= 1


@pytest.mark.parametrize(("sms", "measured"), [(2, 66), (3, 39), (4, 30), (5, 22), (6, 17), (7, 15), (8, 15)])
def test_clusters_at_once(sms: int, measured: int) -> None:
    """Never more than a driver says of one H200, whose processing clusters have other sizes than the next one's."""
    assert 0.75 * measured < GPUS["h200"].clusters_at_once(sms) <= measured
