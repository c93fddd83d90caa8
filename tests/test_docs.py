# SPDX-License-Identifier: Apache-2.0
"""The documentation is true: its Python runs, prints what the pages show, and no option or link is missing.

A change may alter the output that the pages show. Then ``python tests/test_docs.py`` runs the pages' Python and writes
what it prints into them. The difference is part of the change. Names of pages, such as ``docs/passes.md``, restrict it
to these.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.report.test_reasons import guide_table
from tvm_stitch import StitchConfig, cli

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))
#: Pages whose Python runs with this TVM. The README's has a test of its own. The emulator's page calls things
#: not defined there. The page on Relay runs with another TVM (``tests/relay/test_docs.py``).
RUNNABLE = [page for page in PAGES if page.stem not in ("emulator", "relay")]
#: The pages of the user guide.
GUIDE = [ROOT / "docs/user-guide.md", *sorted((ROOT / "docs/user-guide").glob("*.md"))]
#: Pages whose blocks run when each is pasted alone. The blocks of other pages follow on each other.
ALONE = (*GUIDE, ROOT / "docs/deployment.md")
#: Layers of the package: a module imports those of its own number and of smaller ones.
LAYERS = {
    "compat": 0,
    "target": 1,
    "device": 1,
    "config": 1,
    "graph": 1,
    "report": 1,
    "cost": 2,
    "plan": 2,
    "scope": 3,
    "codegen": 3,
}
LAYERS |= {
    "describe": 3,
    "compute": 4,
    "recorder": 4,
    "driver": 4,
    "rules": 4,
    "relax": 5,
    "relay": 5,
}


@dataclasses.dataclass(frozen=True)
class Fence:
    """A fenced block: what follows the backticks, its lines, and the number (from 0) of the first of these."""

    info: str
    text: str
    first: int


def fences(text: str) -> list[Fence]:
    """Return the fenced blocks of a page, in order."""
    found, lines = [], text.splitlines()
    start: int | None = None
    for i, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = i
        else:
            body = "".join(f"{inner}\n" for inner in lines[start + 1 : i])
            found.append(Fence(lines[start][3:].strip(), body, start + 1))
            start = None
    assert start is None, "a block is not closed"
    return found


@contextlib.contextmanager
def _module_for(page: Path) -> Iterator[tuple[ModuleType, str]]:
    """Return a module over a file that has the page's Python on the page's lines: TVMScript reads its own source."""
    text = page.read_text(encoding="utf-8")
    lines = [""] * len(text.splitlines())
    for fence in fences(text):
        if fence.info == "python":
            inner = fence.text.splitlines()
            lines[fence.first : fence.first + len(inner)] = inner
    with tempfile.TemporaryDirectory() as folder:
        name = f"docs_{page.stem.replace('-', '_')}"
        source = Path(folder) / f"{name}.py"
        source.write_text("\n".join(lines) + "\n", encoding="utf-8")
        module = ModuleType(name)
        module.__file__ = str(source)
        sys.modules[name] = module
        before = os.getcwd()
        os.chdir(folder)
        try:
            yield module, str(source)
        finally:
            os.chdir(before)
            del sys.modules[name]


def run(page: Path) -> list[tuple[Fence, str]]:
    """Run the page's Python in order: each output block with what the code before it printed.

    Blocks share a namespace, or have one each on pages of ``ALONE``.
    """
    shown: list[tuple[Fence, str]] = []
    printed = ""
    with _module_for(page) as (module, source):
        for fence in fences(page.read_text(encoding="utf-8")):
            if fence.info == "python":
                if page in ALONE:
                    for name in [n for n in vars(module) if not n.startswith("__")]:
                        delattr(module, name)
                out = io.StringIO()
                code = compile("\n" * fence.first + fence.text, source, "exec")
                with contextlib.redirect_stdout(out):
                    exec(code, module.__dict__)
                printed = "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())
            elif fence.info == "text output":
                shown.append((fence, printed))
    return shown


def _same_everywhere(text: str) -> str:
    """Return the text without what differs between machines."""
    return re.sub(r'"mtriple":"[^"]*"', '"mtriple":"..."', text)


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: page.stem)
def test_python_runs_and_prints_what_is_shown(page: Path) -> None:
    for fence, printed in run(page):
        where = f"{page.relative_to(ROOT)}, line {fence.first + 1}; if it should: python tests/test_docs.py"
        assert _same_everywhere(printed) == _same_everywhere(fence.text), f"what is printed differs: {where}"


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.stem)
def test_pipelines_that_are_shown_fuse_without_losing_parameters(page: Path) -> None:
    shown = [f.text for f in fences(page.read_text(encoding="utf-8")) if f.info in ("python", "py")]
    assert [text for text in shown if re.search(r"relax\.transform\.FuseOps\(", text)] == [], (
        "FuseRest() does"
    )


def test_pytorch_programs_are_imported_with_the_converters() -> None:
    """TVM's own importer misreads operators, so that no page, example or program of the command line uses it alone."""
    pages = [*PAGES, ROOT / "README.md", ROOT / "docs" / "notebook.ipynb", *(ROOT / "examples").glob("*.*")]
    pages += (ROOT / "tvm_stitch" / "cli").rglob("*.py")
    stock = "from tvm.relax.frontend.torch import from_exported_program"
    assert (
        len(pages) > 20 and [str(page) for page in pages if stock in page.read_text(encoding="utf-8")] == []
    )


def test_the_models_of_the_guide_are_those_that_blocks_import() -> None:
    guide = guide_text()
    source = (ROOT / "tvm_stitch/testing/workloads/examples.py").read_text(encoding="utf-8")
    for name in ("Attention", "Keys"):
        (shown,) = re.findall(rf"^(@I.ir_module\nclass {name}:\n(?:(?: .*)?\n)*?)\n\n", guide, re.M)
        assert shown in source, name
    (shown,) = re.findall(r"^class Head.*?\n\n\n", guide, re.M | re.S)
    assert [line.strip() for line in shown.split("\n") if line.strip() and line.strip() not in source] == []


# -- links ---------------------------------------------------------------------------------------------------
def _readme() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        goal = (page.parent / path).resolve() if path else page
        if not goal.exists() or (anchor and anchor not in _anchors(goal)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.stem)
def test_named_sources_exist(page: Path) -> None:
    """Files of the project that a page names by their path."""
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"\b((?:tvm_stitch|scripts|tests|docs)/[\w/]+\.(?:py|md|h|cc|txt))\b", text)
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_page_is_linked_from_the_readme() -> None:
    """Or, in a folder, from the page of the folder's name, and it is in the site's list of pages."""
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in PAGES:
        name = page.relative_to(ROOT / "docs").as_posix()
        folder = name.rpartition("/")[0]
        above = (ROOT / "docs" / f"{folder}.md").read_text(encoding="utf-8") if folder else _readme()
        assert f"({name}" in above or f"(docs/{name})" in above, name
        assert f": {name}\n" in site, name


# -- the user guide is complete ------------------------------------------------------------------------------
def guide_text() -> str:
    """Return the text of all pages of the user guide."""
    return "".join(page.read_text(encoding="utf-8") for page in GUIDE)


@pytest.fixture(scope="module")
def guide() -> str:
    return guide_text()


@pytest.mark.parametrize("field", dataclasses.fields(StitchConfig), ids=lambda field: field.name)
def test_every_config_option_is_documented(guide: str, field: dataclasses.Field[object]) -> None:
    assert re.search(rf"^\| `{field.name}` \| `{re.escape(str(field.default))}` \| \w", guide, re.M)


def _commands() -> dict[str, argparse.ArgumentParser]:
    parser = cli.parser()
    (subparsers,) = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(subparsers.choices)


def test_every_command_line_option_is_documented(guide: str) -> None:
    commands = _commands()
    assert [name for name in commands if f"`tvm-stitch {name}`" not in guide] == []
    options = {
        option for command in commands.values() for a in command._actions for option in a.option_strings
    }
    assert len(options) > 10
    assert sorted(o for o in options - {"-h", "--help"} if not re.search(rf"`{o}[ `]", guide)) == []


def test_the_table_of_reasons_is_the_one_that_reports_use(guide: str) -> None:
    start = guide.index("| Reason | What it means |")
    assert guide[start:].split("\n\n")[0].splitlines() == guide_table()


def _literals() -> str:
    """Return the texts of the package's sources as they are printed. Values in them become spaces."""
    found = []
    for path in sorted((ROOT / "tvm_stitch").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(v.value if isinstance(v, ast.Constant) else " " for v in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def test_the_error_texts_of_troubleshooting_are_those_of_the_sources() -> None:
    page = (ROOT / "docs/user-guide/troubleshooting.md").read_text(encoding="utf-8")
    table = page[page.index("## Error texts") : page.index("## Questions")]
    shown = re.findall(r"^\| `([^`]+)`[^|]*\|", table, re.M)
    assert len(shown) > 20
    texts = _literals()
    pieces = [piece.strip() for text in shown for piece in text.split("...") if len(piece.strip()) > 3]
    assert [piece for piece in pieces if piece not in texts] == []


def test_every_math_function_is_documented(guide: str) -> None:
    from tvm_stitch.codegen.vector_math import MATH_ERROR

    assert [name for name in MATH_ERROR if not re.search(rf"^{name} ", guide, re.M)] == []


def _shown_commands(page: Path) -> list[list[str]]:
    lines = [f.text for f in fences(page.read_text(encoding="utf-8")) if f.info == "console"]
    found = [line[2:] for text in lines for line in text.splitlines() if line.startswith("$ ")]
    return [shlex.split(line, comments=True) for line in found]


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.stem)
def test_shown_commands_are_understood(page: Path) -> None:
    """Options exist, scripts are there, make has the targets."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    for words in _shown_commands(page):
        while "=" in words[0]:
            words = words[1:]
        if words[0] == "tvm-stitch":
            cli.parser().parse_args(words[1:])
        elif words[0] == "make":
            assert {w for w in words[1:] if "=" not in w} <= targets, words
        elif words[0].startswith("python") and words[1] not in ("-m", "-c"):
            script = ROOT / words[1]
            assert script.is_file(), words
            source = script.read_text(encoding="utf-8")
            named: set[str] = set()
            if "from comparison" in source:  # comparisons share options, and options of sizes come from names
                shared = ROOT / "scripts" / "comparison"
                source += (shared / "options.py").read_text(encoding="utf-8")
                sizes = (shared / "workload_sizes.py").read_text(encoding="utf-8")
                named = {f"--{name}" for name in re.findall(r'^    "(\w+)": "', sizes, re.M)}
            if "bench_decode.add_sizes" in source:
                source += (ROOT / "scripts" / "bench_decode.py").read_text(encoding="utf-8")
            options = {w for w in words[2:] if w.startswith("--")} - named
            assert [o for o in options if f'"{o}"' not in source] == [], words


# -- the design page's claims about the sources --------------------------------------------------------------
def _imports(path: Path) -> set[str]:
    """Return the parts of the package that a module imports, by their first name."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = parts[: len(parts) - node.level] + tuple((node.module or "").split("."))
            names = [base[1]] if len(base) > 1 and base[1] else [alias.name for alias in node.names]
            found |= set(names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tvm_stitch."):
            found.add(str(node.module).split(".")[1])
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            whole = [module + alias.name for alias in node.names]
            found |= {
                f for f in ("tvm.relax", "tvm.relay") if any(f"{w}.".startswith(f"{f}.") for w in whole)
            }
    return found


@pytest.mark.parametrize("layer", [layer for layer in LAYERS if (ROOT / "tvm_stitch" / layer).is_dir()])
def test_dependencies_point_one_way(layer: str) -> None:
    paths = list((ROOT / "tvm_stitch" / layer).rglob("*.py"))
    assert paths
    for path in paths:
        imports = _imports(path)
        up = [name for name in imports if LAYERS.get(name, 0) > LAYERS[layer]]
        sideways = [n for n in imports if LAYERS.get(n) == LAYERS[layer] and n != layer and LAYERS[layer] > 2]
        assert (path.name, up, sideways) == (path.name, [], [])
        assert {"tvm.relax", "tvm.relay"} & imports <= {f"tvm.{layer}"}


def update(page: Path) -> None:
    """Write what the page's Python prints into its output blocks."""
    lines = page.read_text(encoding="utf-8").splitlines()
    for fence, printed in reversed(run(page)):
        lines[fence.first : fence.first + len(fence.text.splitlines())] = printed.splitlines()
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")


def chosen(names: list[str]) -> list[Path]:
    """Return the pages of some names, relative to the working directory, or all whose Python runs."""
    pages = [Path(name).resolve() for name in names]
    if unknown := [name for name, page in zip(names, pages, strict=True) if page not in RUNNABLE]:
        known = ", ".join(str(page.relative_to(ROOT)) for page in RUNNABLE)
        raise SystemExit(f"{unknown[0]}: not a page whose Python runs; choose from {known}")
    return pages or RUNNABLE


def test_pages_are_chosen_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert chosen([]) == RUNNABLE and chosen(["docs/passes.md"]) == [ROOT / "docs/passes.md"]
    with pytest.raises(SystemExit, match="docs/relay.md: not a page whose Python runs; choose from docs/"):
        chosen(["docs/relay.md"])


if __name__ == "__main__":
    os.environ.setdefault("TVM_STITCH_CUBLASLT", "none")  # as in tests/conftest.py
    for page in chosen(sys.argv[1:]):
        update(page)
        print(f"{page.relative_to(ROOT)}: up to date")
