# SPDX-License-Identifier: Apache-2.0
"""Constants of choice for tests: the usual ones, and other ones for a whole compilation."""

from __future__ import annotations

from typing import Any

import pytest

from tvm_stitch.cost.choices import Choices
from tvm_stitch.device import GPUS

CHOICES = Choices()


def change_choices(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Let ``device_model`` return GPUs with other constants of choice, by name, until the test ends."""
    for name, model in list(GPUS.items()):
        monkeypatch.setitem(GPUS, name, model.with_choices(**changes))
