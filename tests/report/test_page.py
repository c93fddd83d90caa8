# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser: it draws, it answers clicks, and nothing from the model runs in it."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

import pytest

from scripts._browser import find_browser, in_browser
from tests.report.samples import HOSTILE, measured_sample, sample, value
from tvm_stitch.report.bare import bare_report
from tvm_stitch.report.data import KernelEdge, ModelReport
from tvm_stitch.report.html import html_page
from tvm_stitch.report.kernel import Kernel

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(
    find_browser() is None, reason="no Chromium found: install one, or name one in CHROMIUM"
)


def test_it_draws_without_errors(tmp_path: Path) -> None:
    steps = """
      const texts = (selector) => [...document.querySelectorAll(selector)].map((n) => n.textContent);
      return { cards: texts(".card .name"), tag: texts(".tag text"), bars: texts(".bar-value"),
               links: document.querySelectorAll(".link").length, legend: texts("#legend .item"),
               actionable: document.querySelectorAll(".link.actionable").length, title: texts("h1") };
    """
    outcome = in_browser(html_page(sample(), "encoder"), steps, tmp_path)
    assert outcome.complaints == []
    found = outcome.found
    assert found["title"] == ["encoder"] and found["tag"] == ["2 × these 2 kernels"]
    # Of the second layer nothing is shown, but for what follows the last.
    assert found["cards"] == ["log, exp", "matmul", "layer_norm", "argmax"]
    assert found["bars"] == ["9", "6", "2 kB", "1.2 kB"] and found["links"] == 3 and found["actionable"] == 1
    assert found["legend"][0] == "Stitched kernels, a colour each" and "Left to TVM" in found["legend"]


def test_a_click_on_a_kernel_opens_its_panel(tmp_path: Path) -> None:
    steps = """
      click(document.querySelectorAll(".card")[2]);
      const panel = document.getElementById("panel").innerText;
      const code = document.querySelector("#panel pre").textContent;
      const selected = document.querySelectorAll(".card.selected").length;
      click(document.querySelector(".back"));
      return { panel, code, selected, after: document.getElementById("panel").innerText };
    """
    outcome = in_browser(html_page(sample(), "encoder"), steps, tmp_path)
    assert outcome.complaints == [] and outcome.found["selected"] == 1
    for part in (
        "Stitched kernel", "layer_norm", "layer0.norm", "Call 1 of 2", "192 B read", "128 B written", "Regional",
        "threads a row", "8 B a block", "64 B more than the least", "compute-intensive", "reducing s",
    ):  # fmt: skip
        assert part in outcome.found["panel"], part
    assert outcome.found["code"] == "# head.norm"
    assert "Bytes moved" in outcome.found["after"]


def test_a_keyboard_will_do(tmp_path: Path) -> None:
    steps = """
      const card = document.querySelectorAll(".card[tabindex='0'][role=button]")[1];
      card.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
      const opened = document.getElementById("panel").innerText;
      dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
      const closed = document.getElementById("panel").innerText;
      const [role, label] = ["aria-roledescription", "aria-label"].map((each) => card.getAttribute(each));
      return { opened, closed, role, label, text: card.querySelector(".name").textContent };
    """
    found = in_browser(html_page(sample(), "encoder"), steps, tmp_path).found
    assert (found["role"], found["text"], found["label"]) == (
        "kernel",
        "matmul",
        None,
    )  # the text is the name
    assert "layer0.product" in found["opened"]
    assert "Computed by TVM: no library" in found["opened"] and "Kernels a call" in found["closed"]


def test_edges_are_reached_by_keyboard(tmp_path: Path) -> None:
    steps = """
      const edge = document.querySelector(".link.actionable .hit");
      const space = new KeyboardEvent("keydown", { key: " ", cancelable: true });
      edge.dispatchEvent(space);
      return { opened: document.getElementById("panel").innerText, label: edge.getAttribute("aria-label"),
               role: edge.getAttribute("role"), tab: edge.getAttribute("tabindex"), scrolls: !space.defaultPrevented,
               images: document.querySelectorAll("[role=img] [tabindex]").length };
    """
    outcome = in_browser(html_page(sample(), "encoder"), steps, tmp_path)
    assert outcome.complaints == []
    found = outcome.found
    assert "has a symbolic or empty shape" in found["opened"] and found["label"].startswith("Boundary: ")
    assert (found["role"], found["tab"], found["scrolls"], found["images"]) == ("button", "0", False, 0)


def test_plans_alone_are_shown_without_edges(tmp_path: Path) -> None:
    kernels = [Kernel(f"norm{i}", [], [], "4", [], {}, 8, 192, 128, 256) for i in range(3)]
    page = html_page(bare_report("llvm", "cpu", kernels, {"argmax": "why"}, ()), "plans")
    steps = """
      click(document.querySelectorAll(".card")[2]);
      const { innerText } = document.getElementById("panel");
      return { innerText, buttons: [...document.querySelectorAll("[data-view]:not([hidden])")].length };
    """
    outcome = in_browser(page, steps, tmp_path)
    assert outcome.complaints == [] and outcome.found["buttons"] == 1
    assert "norm2" in outcome.found["innerText"] and "192 B read" in outcome.found["innerText"]


def test_a_click_on_an_edge_says_why(tmp_path: Path) -> None:
    steps = """
      click(document.querySelector(".link.actionable .hit"));
      return document.getElementById("panel").innerText;
    """
    outcome = in_browser(html_page(sample(), "encoder"), steps, tmp_path)
    assert outcome.complaints == []
    assert "has a symbolic or empty shape" in outcome.found
    assert "What to do: Fix the dimensions" in outcome.found and "n4" in outcome.found


def test_operators_unfolded_and_found(tmp_path: Path) -> None:
    steps = """
      document.querySelector("[data-view=operators]").click();
      await ready("operators true");
      const folded = document.querySelectorAll(".pill").length;
      document.getElementById("fold").click();
      await ready("operators false");
      const pills = document.querySelectorAll(".pill").length;
      const search = document.getElementById("search");
      search.value = "LAYER1.";
      search.dispatchEvent(new Event("input"));
      const dimmed = document.querySelectorAll(".pill.dimmed").length;
      search.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
      const panel = document.getElementById("panel").innerText;
      document.querySelector("[data-view=kernels]").click();
      await ready("kernels false");
      return { folded, pills, dimmed, panel, cards: document.querySelectorAll(".card").length };
    """
    outcome = in_browser(html_page(sample(), "encoder"), steps, tmp_path)
    assert outcome.complaints == []
    found = outcome.found
    assert (found["folded"], found["pills"], found["dimmed"], found["cards"]) == (5, 8, 6, 6)
    assert "layer1.product" in found["panel"]


def test_names_stay_text(tmp_path: Path) -> None:
    steps = """
      for (const card of document.querySelectorAll(".card")) click(card);
      click(document.querySelectorAll(".card")[0]);
      return { images: document.images.length, panel: document.getElementById("panel").textContent };
    """
    outcome = in_browser(html_page(sample(HOSTILE), HOSTILE), steps, tmp_path)
    assert outcome.complaints == [] and outcome.found["images"] == 0
    assert HOSTILE in outcome.found["panel"]


def test_the_output_of_the_notebook_draws_itself(tmp_path: Path) -> None:
    """The frame that docs/notebook.ipynb holds, in a page that replaces the notebook."""
    notebook = json.loads((ROOT / "docs" / "notebook.ipynb").read_text(encoding="utf-8"))
    outputs = [output.get("data", {}) for cell in notebook["cells"] for output in cell.get("outputs", [])]
    (frame,) = ["".join(data["text/html"]) for data in outputs if "text/html" in data]
    page = f'<!doctype html><html><head></head><body data-ready="yes">{frame}</body></html>'
    steps = """
      const inner = document.querySelector("iframe").contentDocument;
      while (!inner.body.dataset.ready) await new Promise((done) => setTimeout(done, 10));
      click(inner.querySelector(".card"));
      return { cards: inner.querySelectorAll(".card").length, panel: inner.getElementById("panel").className };
    """
    start = time.perf_counter()
    outcome = in_browser(page, steps, tmp_path)
    assert outcome.complaints == [] and outcome.found["cards"] > 3 and "open" in outcome.found["panel"]
    assert time.perf_counter() - start < 10  # about a second on two cores


def test_light_and_dark(tmp_path: Path) -> None:
    steps = """
      const colour = () => getComputedStyle(document.body).backgroundColor;
      const found = [colour()];
      for (let i = 0; i < 2; i += 1) { click(document.getElementById("theme")); found.push(colour()); }
      return found;
    """
    first, second, third = in_browser(html_page(sample(), "encoder"), steps, tmp_path).found
    assert first == third != second


def _chain(count: int) -> ModelReport:
    """So many operators, each a kernel of its own that no fold hides, which also read what was two before."""
    report = sample()
    operators = tuple(
        dataclasses.replace(
            report.operators[1], name=f"v{i}", source=f"layer{i}", operands=_before(i), kernels=(i,)
        )
        for i in range(count)
    )
    kernels = tuple(
        dataclasses.replace(report.kernels[2], function=f"k{i}", operators=(i,)) for i in range(count)
    )
    edges = tuple(
        KernelEdge(p, i, (value(f"v{p}"),), report.edges[0].reasons) for i in range(count) for p in _before(i)
    )
    return dataclasses.replace(report, operators=operators, kernels=kernels, edges=edges, repeats=())


def _before(i: int) -> tuple[int, ...]:
    return tuple(p for p in (i - 1, i - 3) if p >= 0)


def test_a_thousand_operators_open_in_seconds(tmp_path: Path) -> None:
    steps = """
      const { width } = document.querySelector(".card .body").getBoundingClientRect();
      return { cards: document.querySelectorAll(".card").length, width };
    """
    outcome = in_browser(html_page(_chain(1000), "long"), steps, tmp_path)
    assert outcome.complaints == [] and outcome.found["cards"] == 1000
    assert outcome.found["width"] > 140, "its beginning can be read"
    assert outcome.opened < 10_000  # a third of that on two cores


def test_measured_times(tmp_path: Path) -> None:
    steps = """
      const overview = document.getElementById("panel").innerText;
      const bars = [...document.querySelectorAll(".bar-value")].map((n) => n.textContent);
      const wide = (n) => parseFloat(n.style.width);
      const tracks = [...document.querySelectorAll(".track")].slice(-2);
      const shares = tracks.map((t) => [...t.children].reduce((sum, part) => sum + wide(part), 0));
      const each = [...document.querySelectorAll(".row .time-bar span")].map(wide);
      const captions = [...document.querySelectorAll(".captions .row-value")].map((n) => n.textContent);
      const rows = [...document.querySelectorAll(".row .row-value.time")].map((n) => n.textContent);
      const stock = [...document.querySelectorAll("details .value")].map((n) => n.textContent);
      click(document.querySelectorAll(".card")[0]);
      const kernel = document.getElementById("panel").innerText;
      return { overview, shares, each, captions, bars, rows, stock, kernel };
    """
    outcome = in_browser(html_page(measured_sample(), "encoder"), steps, tmp_path)
    assert outcome.complaints == []
    found = outcome.found
    assert [round(w) for w in found["shares"]] == [100, 35], "on one scale, which the longer one fills"
    assert [round(w) for w in found["each"]] == [12, 100, 75, 75], "of the longest kernel's time"
    assert found["captions"][:2] == ["bytes, each", "time, all"]
    assert found["bars"][-2:] == ["60 ms", "21 ms"] and "Time in kernels, measured" in found["overview"]
    assert "25 ms, half of the calls between 24 ms and 26 ms" in found["overview"]
    assert found["rows"] == ["1 ms", "8 ms", "6 ms", "6 ms"]  # a layer's two calls together
    assert found["stock"] == ["norm2 ×50 ms", "product10 ms"]
    assert "1 ms, half of the calls between 900 µs and 1.1 ms" in found["kernel"]
    assert "3 µs, by bytes and launches" in found["kernel"]
