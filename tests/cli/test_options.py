# SPDX-License-Identifier: Apache-2.0
"""The meaning of the texts of options."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tvm

import tvm_stitch
from tests.cli.helpers import run
from tvm_stitch import StitchConfig
from tvm_stitch.cli import options, program
from tvm_stitch.cli.errors import UsageError
from tvm_stitch.relax import in_half_precision
from tvm_stitch.report.report import Report


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


ANOTHER = {"compute": "auto, attention=tvm", "multiprocessors": 66}
"""Values that are not the defaults, where no number and no word is any."""


@pytest.mark.parametrize("field", dataclasses.fields(StitchConfig), ids=lambda field: field.name)
def test_every_option_of_the_configuration_can_be_given(field: Any) -> None:
    default = field.default
    value = (
        ANOTHER[field.name]
        if field.name in ANOTHER
        else not default
        if default in (True, False)
        else default + 1
    )
    made = options.make_config(options.parse_config([f"{field.name}={value}"]))
    assert made == StitchConfig(**{field.name: value}) != StitchConfig()


MODEL = "the model's file"
OPTION_OF: dict[Callable[..., Any], dict[str, str]] = {
    tvm_stitch.compile: {
        "model": MODEL,
        "target": "--target",
        "config": "--config",
        "example_inputs": "a file has the program that was exported with them",
        "dynamic_shapes": "a file says which dimensions are symbolic",
        "dtype": "--precision",
        "options": "TVM's own: what a build needs beside a model is for programs. Others are --config's",
    },
    tvm_stitch.explain: {
        "model": MODEL,
        "target": "--target",
        "config": "--config",
        "example_inputs": "a file has the program that was exported with them",
        "dynamic_shapes": "a file says which dimensions are symbolic",
        "dtype": "--precision",
        "options": "--config",
    },
    tvm_stitch.load: {"folder": "run's MODEL"},
    tvm_stitch.export_library: {
        "executable": MODEL,
        "path": "--output",
        "target": "--target",
        "options": "TVM's own: the command line compiles for this system",
    },
    in_half_precision: {"mod": MODEL, "dtype": "--precision", "products": "--products"},
    Report.measure: {
        "self": MODEL,
        "inputs": "random, by --seed: times do not depend on them",
        "repeats": "--repeats",
        "seed": "--seed",
    },
    Report.why: {"self": MODEL, "first": "--why", "second": "--why"},
    Report.verbose: {"self": MODEL},
    Report.to_html: {"self": MODEL, "title": "the name of the model's file"},
    Report.to_trace: {"self": MODEL},
}
"""For each argument of the functions that it calls, the command line has an option, or a reason why there is none."""


def name_of(function: Callable[..., Any]) -> str:
    return function.__qualname__


@pytest.mark.parametrize("function", OPTION_OF, ids=name_of)
def test_every_argument_of_a_function_behind_a_command_has_an_option(function: Callable[..., Any]) -> None:
    told = OPTION_OF[function]
    assert list(told) == list(inspect.signature(function).parameters)
    known = {
        option
        for action in program.parser()._subparsers._group_actions  # type: ignore[union-attr]
        for command in action.choices.values()  # type: ignore[union-attr]
        for option in command._option_string_actions
    }
    assert {option for option in told.values() if option.startswith("-")} <= known


def test_products_of_half_precision(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    moved = []
    for more in ((), ("--products", "half")):
        code, stdout, _ = run(
            capfd, "explain", model, "--shape", "x=8,16", "--precision", "float16", *more, "--json"
        )
        assert code == 0
        moved.append(json.loads(stdout)["kernels"][0]["bytes_read"])
    assert moved[1] == moved[0] // 2, "the scores between the products"
    code, _, stderr = run(capfd, "explain", model, "--products", "half")
    assert code == 2 and "add --precision float16" in stderr
