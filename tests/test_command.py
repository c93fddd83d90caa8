# SPDX-License-Identifier: Apache-2.0
"""The installed command: an interrupt while TVM is imported ends it with exit code 130."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RUN = "import sys; sys.path.insert(0, {!r}); from tvm_stitch_command import main; sys.exit(main())"


def start(folder: Path, package: str = "", cli: str = "") -> subprocess.Popen[str]:
    """Return the command, with a package in the place of this one that has only its interrupts."""
    support = folder / "tvm_stitch" / "support"
    support.mkdir(parents=True)
    for name in ("__init__.py", "errors.py", "interrupts.py"):
        shutil.copy(ROOT / "tvm_stitch" / "support" / name, support / name)
    (folder / "tvm_stitch" / "__init__.py").write_text(package)
    (folder / "tvm_stitch" / "cli.py").write_text(f"{cli}\ndef main():\n    return 7\n")
    return subprocess.Popen(
        [sys.executable, "-c", RUN.format(str(folder))], cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
    )  # fmt: skip


@pytest.mark.parametrize("place", ["package", "cli"])
def test_an_interrupt_during_imports(place: str, tmp_path: Path) -> None:
    process = start(tmp_path, **{place: "import time\nprint('importing', flush=True)\ntime.sleep(60)\n"})
    assert process.stdout is not None and process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "interrupted\n")


def test_the_command_line_is_run_with_the_handler_that_was_there(tmp_path: Path) -> None:
    imported = "import signal\nassert signal.getsignal(2) is not signal.default_int_handler\n"
    process = start(tmp_path, cli=imported)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (7, "")


def test_an_import_that_swallows_exceptions_ends_too(tmp_path: Path) -> None:
    """Extension modules replace an exception that leaves an import of theirs."""
    swallowing = "try:\n    time.sleep(60)\nexcept BaseException:\n    pass\n"
    process = start(tmp_path, cli=f"import time\nprint('importing', flush=True)\n{swallowing}")
    assert process.stdout is not None and process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "interrupted\n")
