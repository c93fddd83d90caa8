# SPDX-License-Identifier: Apache-2.0
"""The fuzzer's modules are next to its script, which is no package."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
