# SPDX-License-Identifier: Apache-2.0
"""What the texts of options mean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tvm

from tests.cli.helpers import run
from tvm_stitch.cli import options
from tvm_stitch.cli.errors import UsageError


@pytest.mark.parametrize(
    ("text", "kind", "attribute", "value"),
    [
        ("llvm", "llvm", None, None),
        ("nvidia/nvidia-a100", "cuda", "arch", "sm_80"),
        ('{"kind": "cuda", "arch": "sm_70"}', "cuda", "arch", "sm_70"),
        ("llvm -mcpu=haswell -mattr=+avx2,+fma", "llvm", "mattr", ["+avx2", "+fma"]),
        ("llvm -mattr=+avx2", "llvm", "mattr", ["+avx2"]),
        ('{"kind": "cuda"}', "cuda", "max_num_threads", 1024),
        ("cuda -arch=sm_90 -max_num_threads=512", "cuda", "max_num_threads", 512),
    ],
)
def test_targets(text: str, kind: str, attribute: str | None, value: object) -> None:
    target = options.parse_target(text)
    assert target.kind.name == kind
    if attribute:
        found = target.attrs[attribute]
        assert (list(found) if isinstance(value, list) else found) == value
    if kind == "cuda":
        assert target.host.kind.name == "llvm"


def test_a_target_that_this_tvm_has_no_code_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tvm, "get_global_func", lambda *_, **__: None)
    with pytest.raises(UsageError, match="this TVM generates no code for llvm"):
        options.parse_target("llvm")


def test_native_is_this_machines_cpu() -> None:
    assert str(options.parse_target("native").attrs["mcpu"]) == tvm.target.codegen.llvm_get_system_cpu()


def test_config_values() -> None:
    pairs = ["a=true", "b=False", "c=12", "d=0.5", "e=none", "f=word", "g=[1, 2]", "h=x=y"]
    assert options.parse_config(pairs) == {
        "a": True,
        "b": False,
        "c": 12,
        "d": 0.5,
        "e": None,
        "f": "word",
        "g": [1, 2],
        "h": "x=y",
    }


def test_shapes() -> None:
    assert options.parse_shapes(["x=1,128", "a=b=3", "s="]) == {"x": (1, 128), "a=b": (3,), "s": ()}


def test_options_come_before_and_behind_the_file(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = ("--shape", "x=8,16", "--config", "horizontal_fusion=false", "--config", "max_operators=7")
    for arguments in ((*options, model), (model, *options)):
        code, stdout, _ = run(capfd, "explain", *arguments, "--json")
        assert code == 0 and json.loads(stdout)["kernels"]
