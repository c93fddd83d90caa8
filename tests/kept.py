# SPDX-License-Identifier: Apache-2.0
"""Files that somebody wrote, of a folder and of the package.

Files that Python compiles next to them come and go while tests run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def kept_files(folder: Path) -> list[Path]:
    """Return the files below ``folder``, sorted, without those of ``__pycache__``."""
    return sorted(p for p in folder.rglob("*") if "__pycache__" not in p.parts and p.is_file())


def package_sources() -> Iterator[tuple[str, str]]:
    """Yield the files of ``tvm_stitch``: the path in the repository, and the text."""
    for path in sorted((ROOT / "tvm_stitch").rglob("*.py")):
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
