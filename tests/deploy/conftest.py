# SPDX-License-Identifier: Apache-2.0
"""The C++ program that tests of deployment run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy.cpp_program import built


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program for any model."""
    return built("run_model.cc", tmp_path_factory.mktemp("packages") / "tvm_ffi" / "lib")
