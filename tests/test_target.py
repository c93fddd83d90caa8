# SPDX-License-Identifier: Apache-2.0
"""Targets from what users give."""

from __future__ import annotations

import platform
from types import SimpleNamespace
from typing import Any

import pytest
import tvm

from tvm_stitch import target
from tvm_stitch.target import DEFAULT_ARCH, capability_of, has_feature, other_machine, resolve_target


def test_cuda_means_this_machine_or_the_default() -> None:
    target = resolve_target("cuda")
    assert target.host is not None and str(target.host.kind.name) == "llvm"
    if not tvm.cuda(0).exist:
        assert target.attrs["arch"] == DEFAULT_ARCH


def test_targets_pass_through() -> None:
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_80"}, host="llvm")
    assert resolve_target(target) is target
    llvm = tvm.target.Target("llvm")
    assert resolve_target(llvm) is llvm and resolve_target("llvm").kind.name == "llvm"


def test_what_tvm_does_not_know_is_an_error() -> None:
    with pytest.raises(
        ValueError, match="there is no target 'no_such_target'; give native, llvm, cuda, or a tag"
    ):
        resolve_target("no_such_target")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("cpu", "did you mean native"),
        ("GPU", "did you mean cuda"),
        ("CUDA", "did you mean cuda"),
        ("sm_80", "did you mean cuda -arch=sm_80"),
        ("nvidia/nvidia-h1000", "did you mean nvidia/nvidia-h100"),
        ("native -mcpu=haswell", "native is this machine's CPU and takes no options; give llvm with them"),
        (None, "a target is a text, a dictionary or a tvm.target.Target, not NoneType"),
        (80, "not int"),
    ],
)
def test_what_was_meant(target: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve_target(target)


def test_blanks_around_a_target() -> None:
    assert str(resolve_target(" native ")) == str(resolve_target("native"))
    assert resolve_target("llvm\n").kind.name == "llvm"


def test_other_machines() -> None:
    def machine(spec: Any) -> str:
        return other_machine(tvm.target.Target(spec))

    assert machine("llvm") == machine({"kind": "cuda", "arch": "sm_80"}) == ""
    other = "x86_64" if platform.machine() == "aarch64" else "aarch64"
    there = {"kind": "llvm", "mtriple": f"{other}-linux-gnu"}
    assert machine(there) == machine({"kind": "cuda", "arch": "sm_80", "host": there}) == other
    assert machine({"kind": "llvm", "mtriple": f"{platform.machine()}-linux-gnu"}) == ""


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"kind": "cuda", "arch": "sm_xx"}, "'sm_xx' is not a CUDA architecture; give one such as sm_90"),
        ({"kind": "cuda", "arch": "sm_9.0"}, "'sm_9.0' is not a CUDA architecture"),
        ({"kind": "cuda", "arch": "sm_77"}, "NVIDIA has no architecture 'sm_77'; did you mean sm_75"),
        ({"kind": "cuda", "arch": "sm_77x"}, "NVIDIA has no architecture 'sm_77x'; did you mean sm_75"),
        ({"kind": "cuda", "arch": "sm_80a"}, "NVIDIA has no architecture 'sm_80a'; did you mean sm_80"),
        ({"kind": "cuda", "arch": "sm_999"}, "NVIDIA has no architecture 'sm_999'; did you mean sm_121"),
        ({"kind": "llvm", "mcpu": "skylake-avx521"}, "no CPU 'skylake-avx521'; did you mean skylake-avx512"),
        ({"kind": "llvm", "mcpu": "quite-another"}, "no CPU 'quite-another'; did you mean"),
        ({"kind": "llvm", "mtriple": "foo-bar"}, "LLVM has no code for 'foo-bar'"),
        ({"kind": "llvm", "mtriple": "vax-dec-ultrix", "mcpu": "a"}, "LLVM has no code for 'vax-dec-ultrix'"),
        (
            {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a73x"},
            "no CPU 'cortex-a73x' of aarch64-linux-gnu; did you mean cortex-a7",
        ),
    ],
)
def test_cpus_and_architectures_that_there_are_not(spec: Any, message: str) -> None:
    """LLVM would take its baseline, and say so among many lines."""
    with pytest.raises(ValueError, match=message):
        resolve_target(spec)
    with pytest.raises(ValueError, match=message):
        resolve_target(tvm.target.Target(spec))


def test_the_host_is_looked_at_too() -> None:
    host = tvm.target.Target({"kind": "llvm", "mcpu": "quite-another"})
    with pytest.raises(ValueError, match="quite-another"):
        resolve_target(tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host=host))


@pytest.mark.parametrize(
    "spec",
    [
        {"kind": "llvm", "mcpu": "haswell"},
        {"kind": "llvm", "mcpu": "generic"},
        {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"},
        {"kind": "llvm", "mtriple": "arm64-apple-darwin", "mcpu": "apple-m1"},
        "native",
        "llvm -mcpu=haswell",
        '{"kind": "llvm", "mcpu": "haswell"}',
    ],
)
def test_cpus_that_there_are(spec: Any) -> None:
    wanted = spec["mcpu"] if isinstance(spec, dict) else resolve_target(spec).attrs["mcpu"]
    assert resolve_target(spec).attrs["mcpu"] == wanted


@pytest.mark.parametrize("arch", ["sm_61", "sm_90a", "sm_100f", "sm_121"])
def test_architectures_that_there_are(arch: str) -> None:
    assert resolve_target({"kind": "cuda", "arch": arch}).attrs["arch"] == arch


def test_an_architecture_that_is_new_to_us_is_taken_from_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target.tvm, "cuda", lambda _: SimpleNamespace(exist=True, compute_version="13.7"))
    assert resolve_target({"kind": "cuda", "arch": "sm_137"}).attrs["arch"] == "sm_137"
    with pytest.raises(ValueError, match="no architecture 'sm_138'"):
        resolve_target({"kind": "cuda", "arch": "sm_138"})


@pytest.mark.parametrize("spec", ["cuda", {"kind": "cuda"}, "cuda -max_num_threads=512", '{"kind": "cuda"}'])
def test_cuda_without_an_architecture_is_this_machines_or_the_default(spec: Any) -> None:
    if not tvm.cuda(0).exist:
        assert resolve_target(spec).attrs["arch"] == DEFAULT_ARCH


@pytest.mark.parametrize(
    "triple",
    ["x86_64-linux-gnu", "amd64-pc-freebsd", "arm64-apple-darwin", "armv7l-linux-gnueabihf", "i686-linux"],
)
def test_triples(triple: str) -> None:
    assert str(resolve_target({"kind": "llvm", "mtriple": triple}).attrs["mtriple"]) == triple


@pytest.mark.parametrize("sign", "+-")
def test_features_that_there_are_not(sign: str) -> None:
    """LLVM would ignore them."""
    with pytest.raises(ValueError, match="LLVM knows no feature 'sve9' of aarch64-linux-gnu"):
        resolve_target(
            {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon", "-sve", f"{sign}sve9"]}
        )
    kept = resolve_target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon", "-sve"]})
    assert list(kept.attrs["mattr"]) == ["+neon", "-sve"]


def test_a_number_of_cores() -> None:
    with pytest.raises(ValueError, match="num-cores must be at least 1, got 0"):
        resolve_target({"kind": "llvm", "num-cores": 0})
    with pytest.raises(ValueError, match="the option num-cores takes an integer"):
        resolve_target("llvm -num-cores=many")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("cuda -max_threads_per_block=0", "max_threads_per_block must be 1 to 1024, got 0"),
        ("cuda -max_num_threads=-4", "max_num_threads must be 1 to 1024, got -4"),
        ("cuda -max_num_threads=2048", "max_num_threads must be 1 to 1024, got 2048"),
        ("cuda -thread_warp_size=0", "thread_warp_size must be 32, got 0"),
        ("cuda -max_shared_memory_per_block=-1", "max_shared_memory_per_block must be at least 1, got -1"),
        ("cuda -registers_per_block=0", "registers_per_block must be at least 1, got 0"),
        ("cuda -l2_cache_size_bytes=-3", "l2_cache_size_bytes must be at least 0, got -3"),
        ("rocm -thread_warp_size=0", "thread_warp_size must be at least 1, got 0"),
        ("llvm -opt-level=9", "opt-level must be 0 to 3, got 9"),
        ("llvm -vector-width=-3", "vector-width must be at least 1, got -3"),
    ],
)
def test_numbers_that_no_device_has(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve_target(spec)


def test_limits_of_devices_that_tvm_knows_are_taken() -> None:
    for tag in tvm.target.list_tags():
        named = tvm.target.Target(tag)
        if named.kind.name == "cuda" and capability_of(named) >= 35:
            assert resolve_target(tag).kind.name == "cuda"
    for level in range(4):
        assert resolve_target(f"llvm -opt-level={level} -vector-width=256").attrs["opt-level"] == level


@pytest.mark.parametrize("kind", ["rocm", "nvptx"])
def test_what_tvm_says_of_devices_it_does_not_find_is_not_printed(
    kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert resolve_target(kind).kind.name == kind
    assert capfd.readouterr() == ("", "")
    with pytest.raises(ValueError, match="^(NVPTX|ROCm) target gets an invalid [^()]*zzz$"):
        resolve_target(f"{kind} -mcpu=zzz")


@pytest.mark.parametrize("text", ["llvm mcpu=haswell", "{", "", "  "])
def test_texts_that_are_no_targets(text: str) -> None:
    with pytest.raises(ValueError, match="-key=value|JSON|no target"):
        resolve_target(text)


def test_capabilities() -> None:
    assert capability_of(resolve_target({"kind": "cuda", "arch": "sm_103a"})) == 103
    assert capability_of(resolve_target("llvm")) == 0


@pytest.mark.parametrize(
    ("cpu", "here", "added"),
    [
        ("skylake-avx512", {"avx512f", "avx512bf16"}, ["+avx512bf16"]),
        ("skylake-avx512", {"avx512f"}, None),
        ("cooperlake", {"avx512f", "avx512bf16"}, None),
        ("skylake-avx512", set(), None),
        ("sapphirerapids", {"avx512bf16", "amx-tile", "amx-bf16", "amx-int8"}, None),
        ("sapphirerapids", {"avx512bf16"}, ["-amx-tile", "-amx-bf16", "-amx-int8"]),
        ("cooperlake", {"avx512bf16", "amx-tile", "amx-bf16"}, ["+amx-tile", "+amx-bf16"]),
    ],
)
def test_instructions_that_the_name_of_this_cpu_lacks(
    cpu: str, here: set[str], added: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LLVM takes a CPU of a virtual machine for an older one."""
    monkeypatch.setattr(target.tvm.target.codegen, "llvm_get_system_cpu", lambda: cpu)
    monkeypatch.setattr(target, "_features_here", lambda: here)
    found = target.this_cpu()
    assert found["mcpu"] == cpu and found.get("mattr") == added
    assert has_feature(resolve_target(found), "avx512bf16") == ("avx512bf16" in here)
    assert has_feature(resolve_target(found), "amx-bf16") == ("amx-bf16" in here)


def test_features_of_this_machine() -> None:
    assert target._features_here() >= {"sse2"} or platform.machine() != "x86_64"
