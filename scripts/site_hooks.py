# SPDX-License-Identifier: Apache-2.0
"""Hooks of MkDocs: files of the repository's root as pages and files of the site, and links to match.

Pages are also read on the code host, where links lead through folders of the repository. On the site they lead to the
root's pages and the files named in FILES.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Pages of the root, by their names on the site."""

FILES = (
    "LICENSE",
    "examples/cached_step.py",
    "examples/generate.py",
    "examples/minimal.cc",
    "examples/run_model.cc",
    "python/cuda-emulator/README.md",
    "python/tvm-relay-toolchain/README.md",
)
"""Files that pages link to, shown as text."""


def on_files(files: Any, config: Any) -> Any:
    """Add the pages and files of the root."""
    from mkdocs.structure.files import File  # not installed in the tests' environment

    for source, name in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=from_root(text)))
    for source in FILES:
        files.append(
            File.generated(config, f"{source}.txt", content=(ROOT / source).read_text(encoding="utf-8"))
        )
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite links of pages in docs/ to files outside that folder, and give blocks names that MkDocs knows."""
    return re.sub(r"^```(text output|py)$", _known_block, from_docs(markdown), flags=re.M)


def _known_block(match: re.Match[str]) -> str:
    """Return a name that MkDocs knows. Blocks of Python's output have the name ``text output`` for the tests."""
    return "```python" if match[1] == "py" else "```text"


def from_root(text: str) -> str:
    """Rewrite links of a page of the root: on the site all pages are in one folder."""
    text = re.sub(r"\]\(docs/", "](", text)
    for source, name in PAGES.items():
        text = text.replace(f"]({source})", f"]({name})")
    return _to_files(text, "")


def from_docs(text: str) -> str:
    """Rewrite links of a page in docs/ to the root."""
    text = re.sub(r"\[docs/records\]\([./]*records\)", "`docs/records`", text)
    for up in ("../", ""):  # pages in a folder of docs/, and those in docs/
        for source, name in PAGES.items():
            text = text.replace(f"](../{up}{source})", f"]({up}{name})")
        text = _to_files(text, f"../{up}", up)
    return text


def _to_files(text: str, before: str, after: str = "") -> str:
    for source in FILES:
        text = text.replace(f"]({before}{source})", f"]({after}{source}.txt)")
    return text
