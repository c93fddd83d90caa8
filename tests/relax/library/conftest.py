# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for cuBLASLt and cuDNN, which machines without a GPU lack."""

from __future__ import annotations

import pytest

from tests.relax import cublaslt_stand_in, cudnn_stand_in
from tvm_stitch.compute.cuda import library


@pytest.fixture
def cublaslt_in_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library.CUBLASLT, "function", cublaslt_stand_in.NAME)
    monkeypatch.setattr(library.CUBLASLT, "missing", lambda: "cuBLASLt is not here")


@pytest.fixture
def cudnn_in_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library.CUDNN, "function", cudnn_stand_in.NAME)
    monkeypatch.setattr(library.CUDNN, "missing", lambda: "cuDNN is not here")
