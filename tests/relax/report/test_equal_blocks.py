# SPDX-License-Identifier: Apache-2.0
"""Equal kernels have one kind and one note, which is about what they compute, however many blocks a model has."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
import tvm

import tvm_stitch
from stitch_testing.random.graphs import emulated_target
from tests.relax.report.equal_blocks import equal_blocks, wrong_notes
from tvm_stitch import StitchConfig, explain
from tvm_stitch.report.data import ModelReport

pytest.importorskip("torch")

TARGETS = {
    "llvm": (tvm.target.Target("llvm"), StitchConfig()),
    "cuda": (tvm.target.Target({"kind": "cuda", "arch": "sm_90"}), StitchConfig(compute="templates")),
    "libraries": (tvm.target.Target({"kind": "cuda", "arch": "sm_90"}), StitchConfig(compute="libraries")),
}


def notes(report: tvm_stitch.Report) -> Counter[tuple[str, str, str]]:
    model = report.model
    assert isinstance(model, ModelReport)
    return Counter((k.function, k.kind, k.note) for k in model.kernels if k.kind != "stitched")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("count", "half"), [(3, False), (12, True)])
def test_equal_kernels_have_equal_notes(count: int, half: bool, target: str) -> None:
    """Names of the half model's values repeat, because its casts and what they read are numbered from 0 again."""
    report = explain(equal_blocks(count, half=half), *TARGETS[target])
    assert wrong_notes(report) == []
    found = notes(report)
    attention = {key: number for key, number in found.items() if "attention" in key[0]}
    assert list(attention.values()) == [count]
    assert all("4 x 2 heads of 32, 16 queries, 16 keys" in note for _, _, note in attention)
    assert sum(number for key, number in found.items() if key not in attention) % count == 0
    for text in (str(report), report.to_html(), json.dumps(report.to_dict()), report.verbose()):
        assert "__value" not in text
    shown = [line for line in str(report).splitlines() if " x " in line and "attention:" in line]
    assert len(shown) == len(attention)
    assert report.model is not None and all(kernel.operators for kernel in report.model.kernels)
    page = json.loads(json.dumps(report.model.to_dict()))["kernels"]
    assert Counter((k["function"], k["kind"], k["note"]) for k in page if k["kind"] != "stitched") == found


def test_attention_is_told_from_its_block() -> None:
    """The operators of a kernel are those of its own block, though names of values repeat."""
    model = explain(equal_blocks(12), *TARGETS["cuda"]).model
    assert model is not None
    operators = [
        [model.operators[i].kind for i in k.operators] for k in model.kernels if "attention" in k.function
    ]
    assert len(operators) == 12 and all(each == operators[0] for each in operators)
    assert operators[0].count("matmul") == 2 and operators[0].count("softmax") == 1


def test_functions_with_equal_names_of_values() -> None:
    """Both functions number their values from 0."""
    first, second = equal_blocks(2, 16)["main"], equal_blocks(2, 24)["main"]
    mod = tvm.IRModule({"main": first, "other": second.with_attr("global_symbol", "other")})
    report = explain(mod, *TARGETS["cuda"])
    assert wrong_notes(report) == []
    assert sorted(how for how in report.computed.values() if "heads" in how) == [
        f"our kernel: 4 x 2 heads of 32, {n} queries, {n} keys" for n in (16, 16, 24, 24)
    ]
    model = report.model
    assert model is not None
    told = {(k.caller, k.note) for k in model.kernels if "attention" in k.function}
    assert {(caller, note.rpartition(", ")[2]) for caller, note in told} == {
        ("main", "16 keys"), ("other", "24 keys"),
    }  # fmt: skip


def test_boundaries_name_the_products_that_they_are_at() -> None:
    lines = str(explain(equal_blocks(3), *TARGETS["cuda"])).splitlines()
    (line,) = (each for each in lines if "computed in the kernel of matmul" in each)
    assert "computed in the kernel of matmul1..3 (" in line


def test_a_compiled_model_whose_names_repeat_has_its_graph(caplog: pytest.LogCaptureFixture) -> None:
    mod = equal_blocks(2)
    report: Any = tvm_stitch.compile(mod, emulated_target()).report
    assert report.model is not None and "was changed" not in caplog.text and wrong_notes(report) == []
