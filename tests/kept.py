# SPDX-License-Identifier: Apache-2.0
"""Files of a folder that somebody wrote: what Python compiles beside them comes and goes while tests run."""

from __future__ import annotations

from pathlib import Path


def kept_files(folder: Path) -> list[Path]:
    """Return the files below ``folder``, sorted, without those of ``__pycache__``."""
    return sorted(p for p in folder.rglob("*") if "__pycache__" not in p.parts and p.is_file())
