# SPDX-License-Identifier: Apache-2.0
"""The type in which PyTorch computes with half types."""

from __future__ import annotations

from typing import Any

import torch


def wide_type(dtype: Any) -> Any:
    """Return float32 for float16 and bfloat16, and other types as they are."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
