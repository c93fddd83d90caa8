# SPDX-License-Identifier: Apache-2.0
"""Runs the command line in this process."""

from __future__ import annotations

import pytest

from tvm_stitch import cli


def run(capfd: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr, those of native code included."""
    code = cli.main([str(arg) for arg in argv])
    captured = capfd.readouterr()
    return code, captured.out, captured.err
