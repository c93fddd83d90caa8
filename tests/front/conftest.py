# SPDX-License-Identifier: Apache-2.0
"""Fixtures of tests that compile by ``torch.compile``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def forgotten() -> Iterator[None]:
    """PyTorch forgets what it traced before the test and in it."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
