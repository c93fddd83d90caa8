# SPDX-License-Identifier: Apache-2.0
"""The page as a file: whole, without a network, and with nothing from the model in it that is not text."""

from __future__ import annotations

import html
import json
import re

from tests.report.samples import HOSTILE, sample
from tvm_stitch.report.html import LIBRARIES, html_page, script_json


def _data(page: str) -> dict:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return json.loads(text)


def test_the_page_holds_the_data() -> None:
    assert _data(html_page(sample(), "model")) == json.loads(json.dumps(sample().to_dict()))


def test_the_page_needs_no_network() -> None:
    page = html_page(sample(), "model")
    assert "default-src 'none'" in page
    assert (
        re.findall(
            r"(?:src|href)\s*=\s*[\"']?(?!\$)[^\s>]+", re.sub(r"<script>.*?</script>", "", page, flags=re.S)
        )
        == []
    )
    assert page.count("<script>") == len(LIBRARIES) + 2


def test_names_and_titles_are_text() -> None:
    page = html_page(sample(HOSTILE), HOSTILE)
    assert "<img" not in page and page.count("</script>") == html_page(sample(), "model").count("</script>")
    assert html.escape(HOSTILE) in page
    assert _data(page)["operators"][0]["source"] == HOSTILE


def test_a_title_with_a_dollar_is_a_title() -> None:
    assert "<h1>$title ${data}</h1>" in html_page(sample(), "$title ${data}")


def test_json_in_a_script_ends_nothing() -> None:
    text = script_json({"a": "</script><!--&"})
    assert not set("<>&") & set(text) and json.loads(text) == {"a": "</script><!--&"}


def test_the_frame_of_a_notebook_holds_the_page() -> None:
    frame = html_page(sample(HOSTILE), "model", embedded=True)
    (page,) = re.findall(r'srcdoc="([^"]*)"', frame)
    assert html.unescape(page) == html_page(sample(HOSTILE), "model") and frame.count("<") == 2
