# SPDX-License-Identifier: Apache-2.0
"""The notebook runs from top to end, and shows what it says.

After a change of it, ``python tests/test_notebook.py`` runs it and writes its outputs.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"


def executed() -> Any:
    """Return the notebook with the outputs of a run in a kernel of its own."""
    notebook = nbformat.read(NOTEBOOK, 4)
    nbformat.validate(notebook)
    paths = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "TVM_STITCH_CUBLASLT": "none"}
    with tempfile.TemporaryDirectory(prefix="nb-") as sockets:
        manager = AsyncKernelManager(kernel_name="python3", transport="ipc", ip=f"{sockets}/kernel")
        client = NotebookClient(notebook, km=manager, timeout=180, record_timing=False, coalesce_streams=True)
        client.execute(env=env)
    return notebook


@pytest.fixture(scope="module")
def notebook() -> Any:
    return executed()


def printed(cell: Any) -> str:
    """Return the output of a cell."""
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def cell_with(notebook: Any, text: str) -> Any:
    (found,) = [cell for cell in notebook.cells if cell.cell_type == "code" and text in cell.source]
    return found


def test_nothing_is_written_but_results(notebook: Any) -> None:
    streams = {o.name for c in notebook.cells if c.cell_type == "code" for o in c.outputs if "name" in o}
    assert streams == {"stdout"}, "no warnings"


def test_results_are_right_and_kernels_fewer(notebook: Any) -> None:
    assert printed(cell_with(notebook, "within 1e-5")).count(": True") == 2
    lines = printed(cell_with(notebook, "count_kernels")).splitlines()
    totals = [int(line.split(":")[1].split()[0]) for line in lines]
    assert totals[1] < totals[0] and totals[3] < totals[2]


def test_the_report_is_shown(notebook: Any) -> None:
    (output,) = [o for o in cell_with(notebook, "report = ").outputs if o.output_type == "execute_result"]
    assert output.data["text/html"].startswith("<iframe") and "kernels a call" in output.data["text/plain"]


def test_a_kernel_is_shown(notebook: Any) -> None:
    assert 'extern "C" __global__' in printed(cell_with(notebook, "report.code"))


def test_what_is_stored_was_run(notebook: Any) -> None:
    """The outputs in the file are those of its cells. Times differ from run to run, and names of dicts may."""
    stored = nbformat.read(NOTEBOOK, 4)
    for kept, run in zip(stored.cells, notebook.cells, strict=True):
        if kept.cell_type == "code":
            assert kept.execution_count == run.execution_count, kept.source
            if "interleaved" not in kept.source:
                assert printed(kept) == printed(run), f"run: python {Path(__file__).relative_to(ROOT)}"


if __name__ == "__main__":
    nbformat.write(executed(), NOTEBOOK)
