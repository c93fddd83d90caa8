# SPDX-License-Identifier: Apache-2.0
"""Puts the packages of this checkout first on Python's path, whether or not they are installed.

A script imports this module before them.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (ROOT, ROOT / "python/cuda-emulator/src", ROOT / "python/stitch-testing/src")
"""The folders of the packages."""

sys.path[:0] = [str(folder) for folder in SOURCES]
