# SPDX-License-Identifier: Apache-2.0
"""The public names of ``tvm_stitch.relax``, which are imported on first use."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import tvm_stitch.relax


def test_every_public_name_is_there() -> None:
    for name in tvm_stitch.relax.__all__:
        assert getattr(tvm_stitch.relax, name).__name__ == name


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'pipelines'"):
        tvm_stitch.relax.pipelines


def test_the_pipeline_is_the_function_behind_an_import_of_its_module() -> None:
    module = importlib.import_module("tvm_stitch.relax.pipeline")
    assert tvm_stitch.relax.pipeline is module.pipeline


@pytest.mark.usefixtures("children_without_torch")
@pytest.mark.parametrize("first", ["repairs.legalize.mend", "relax.pipeline", "relax.rewriting.calls"])
def test_any_module_may_be_imported_first(first: str) -> None:
    """In a process of its own: an import circle shows only there."""
    script = f"import tvm_stitch.{first}; from tvm_stitch.relax import pipeline; assert callable(pipeline)"
    subprocess.run([sys.executable, "-W", "error::ImportWarning", "-c", script], check=True)
