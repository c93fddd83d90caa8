# SPDX-License-Identifier: Apache-2.0
"""Notes of the zoo's models: one kind and one note for each function, and none of another operator's kind."""

from __future__ import annotations

import pytest
import tvm

from tests.relax.report.equal_blocks import GENERAL, wrong_notes
from tvm_stitch import StitchConfig, explain

pytest.importorskip("torch")
models = pytest.importorskip("tests.models.zoo.models")

TARGETS = {
    "llvm": (tvm.target.Target("llvm"), StitchConfig()),
    "cuda": (tvm.target.Target({"kind": "cuda", "arch": "sm_90"}), StitchConfig(compute="libraries")),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", models.MODELS)
def test_notes(name: str, target: str) -> None:
    report = explain(models.MODELS[name]().mod, *TARGETS[target])
    assert wrong_notes(report) == []
    assert report.model is not None
    noted = [k.note for k in report.model.kernels if k.kind in ("compute", "library")]
    assert all(noted), "a kernel without a known decision says so in general words"
    assert all(note in (*GENERAL, *note_texts(report.computed)) for note in noted)


def note_texts(computed: dict[str, str]) -> set[str]:
    """Return the texts of decisions, and of several of them together."""
    texts = set(computed.values())
    return texts | {f"{one}; {other}" for one in texts for other in texts}
