# SPDX-License-Identifier: Apache-2.0
"""The site: links of the repository's pages lead through it, no page is left out, the API page names what there is."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from scripts import site_hooks

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
NAMES = re.findall(r"^::: ([\w.]+)$", API, re.M)


def test_links_of_the_root() -> None:
    text = "[a](docs/user-guide.md#targets) [b](CHANGELOG.md) [c](LICENSE) ![d](docs/images/x.svg) [e](https://x.y)"
    assert site_hooks.from_root(text) == (
        "[a](user-guide.md#targets) [b](changelog.md) [c](LICENSE.txt) ![d](images/x.svg) [e](https://x.y)"
    )


def test_links_of_pages() -> None:
    text = "[a](relay.md) [b](../README.md) [c](../examples/minimal.cc) [docs/records](records)"
    assert site_hooks.from_docs(text) == (
        "[a](relay.md) [b](index.md) [c](examples/minimal.cc.txt) `docs/records`"
    )


def test_links_of_pages_in_folders() -> None:
    text = "[a](../relay.md) [b](../../README.md) [c](../../examples/minimal.cc)"
    assert site_hooks.from_docs(text) == "[a](../relay.md) [b](../index.md) [c](../examples/minimal.cc.txt)"


def test_blocks_of_names_that_the_site_knows() -> None:
    text = "```text output\nx\n```\n```py\ny\n```\n```python\n```text"
    assert site_hooks.on_page_markdown(text, None) == "```text\nx\n```\n```python\ny\n```\n```python\n```text"


def test_every_page_and_file_is_there() -> None:
    nav = set(re.findall(r": ([\w-]+\.(?:md|ipynb))$", SETTINGS, re.M))
    pages = {path.name for pattern in ("*.md", "*.ipynb") for path in (ROOT / "docs").glob(pattern)}
    assert nav == pages | set(site_hooks.PAGES.values())
    assert [name for name in (*site_hooks.PAGES, *site_hooks.FILES) if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize("name", [name for name in NAMES if ".relay." not in name])
def test_the_api_page_names_what_there_is(name: str) -> None:
    module, _, member = name.rpartition(".")
    found = getattr(importlib.import_module(module), member) if module else importlib.import_module(name)
    assert (found.__doc__ or "").strip()


def test_the_api_page_has_all_that_the_package_exports() -> None:
    import tvm_stitch

    wanted = {name for name in tvm_stitch.__all__ if not name.startswith("__")}
    assert [name for name in wanted if not re.search(rf"\b{name}\b", API)] == []
