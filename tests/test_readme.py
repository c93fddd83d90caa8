# SPDX-License-Identifier: Apache-2.0
"""The README's Python runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import tvm

README = Path(__file__).resolve().parent.parent / "README.md"


def test_python_examples_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    assert len(blocks) == 2
    names: dict[str, Any] = {"target": tvm.target.Target("llvm")}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    assert names["hidden"].numpy().shape == (1, 128, 384)


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([\w./-]+)\)", README.read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not (README.parent / link).exists()] == []
