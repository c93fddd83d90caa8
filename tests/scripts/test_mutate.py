# SPDX-License-Identifier: Apache-2.0
"""The tool of mutation tests, on a tree of one module and one test."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mutating.mutations import ENVIRONMENTS, Mutation, TableError, listed, load
from mutating.page import MARKS
from mutating.runner import verdict, write_source

from scripts.mutate import main

ROOT = Path(__file__).resolve().parents[2]
SOURCE = """def bound(n):
    while n > 10:
        n -= 1
    return n + 0


def twice(n):
    return n + n
"""
TESTS = """import time

import code_under_test as code


def test_bound():
    assert code.bound(12) == 10


def test_first():
    assert code.twice(0) == 0
"""
TABLE = """
[[mutation]]
name = "bound-off-by-one"
file = "code_under_test.py"
old = "n > 10"
new = "n > 11"
tests = ["test_code.py::test_bound"]

[[mutation]]
name = "bound-endless"
file = "code_under_test.py"
old = "n -= 1"
new = "n -= 0"
tests = ["test_code.py::test_bound"]

[[mutation]]
name = "twice-squared"
file = "code_under_test.py"
old = "n + n"
new = "n * n"
tests = ["test_code.py::test_first"]

[[mutation]]
name = "bound-nothing-added"
file = "code_under_test.py"
old = "n + 0"
new = "n - 0"
equivalent = "Zero has no sign here."

[[mutation]]
name = "gone"
file = "code_under_test.py"
old = "no such text"
new = ""
tests = ["test_code.py::test_bound"]
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout with this environment's Python, which git does not know."""
    root = tmp_path / "checkout"
    (root / "scripts" / "mutations").mkdir(parents=True)
    (root / "code_under_test.py").write_text(SOURCE)
    (root / "test_code.py").write_text(TESTS)
    (root / "scripts" / "mutations" / "area.toml").write_text(TABLE)
    python = root / ENVIRONMENTS["relax"]
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return root


def contents(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def test_every_verdict(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(tree)
    page = tree.parent / "page.md"
    page.write_text("before\n<!-- mutants -->\nold\n<!-- /mutants -->\nafter\n")
    assert main(["--root", str(tree), "--jobs", "2", "--timeout", "10", "--markdown", str(page)]) == 1
    assert contents(tree) == before, "the checkout is only read"
    rows = page.read_text().splitlines()
    assert rows[:2] == ["before", "<!-- mutants -->"] and rows[-2:] == ["<!-- /mutants -->", "after"]
    assert rows[4:-2] == [
        "| area | `bound-endless` | timeout |",
        "| area | `bound-nothing-added` | equivalent: Zero has no sign here. |",
        "| area | `bound-off-by-one` | killed |",
        "| area | `gone` | does not apply |",
        "| area | `twice-squared` | survived |",
    ]
    printed = capsys.readouterr().out
    assert "test_code.py::test_bound" in printed and "occurs 0 times" in printed
    assert "survived: area/twice-squared" in printed


def test_rows_of_mutations_that_were_not_run_stay(tree: Path) -> None:
    page = tree.parent / "page.md"
    row = "| area | `{}` | {} |"
    page.write_text(
        "\n".join(
            [
                "<!-- mutants -->",
                row.format("bound-off-by-one", "survived"),
                row.format("bound-endless", "timeout"),
            ]
            + [row.format("nobody", "killed"), "<!-- /mutants -->"]
        )
    )
    assert main(["--root", str(tree), "bound-off-by-one", "--markdown", str(page)]) == 0
    assert page.read_text().splitlines()[3:5] == [
        row.format("bound-endless", "timeout"),
        row.format("bound-off-by-one", "killed"),
    ]


def test_all_noticed_is_success(tree: Path) -> None:
    assert main(["--root", str(tree), "bound-*one", "bound-nothing*"]) == 0
    assert main(["--root", str(tree), "twice*"]) == 1


def test_tests_must_pass_unchanged(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / "test_code.py").write_text(TESTS.replace("== 10", "== 11"))
    assert main(["--root", str(tree), "bound-off-by-one"]) == 1
    printed = capsys.readouterr().out
    assert "fails on unchanged sources: test_code.py::test_bound" in printed and "1 error" in printed
    (tree / "test_code.py").write_text(TESTS.replace("test_bound", "test_other"))
    assert main(["--root", str(tree), "bound-off-by-one"]) == 1
    assert "1 error" in capsys.readouterr().out


def test_list_runs_nothing(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--root", str(tree), "--list"]) == 1  # one does not apply
    assert main(["--root", str(tree), "--list", "bound*"]) == 0
    assert "applies        area/bound-endless" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nobody"], "no mutation or area is called nobody"),
        (["--area", "elsewhere"], "called elsewhere"),
        (["--jobs", "0"], "above 0"),
    ],
)
def test_wrong_arguments(
    tree: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--root", str(tree), *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "table, message",
    [
        ("", "no mutations in"),
        ("[[mutation]\n", "area.toml"),
        (TABLE + TABLE, "several mutations are called bound-endless"),
        (TABLE.replace('new = "n > 11"\n', ""), "missing.*new"),
        (TABLE.replace('new = "n > 11"', 'new = "n > 10"'), "the new text is the old one"),
        (TABLE.replace("equivalent", "environment"), "environment 'Zero"),
        (TABLE.replace('equivalent = "Zero has no sign here."', ""), "names no tests"),
        (TABLE + "why = 1\n", "unknown.*why"),
    ],
)
def test_wrong_tables(tmp_path: Path, table: str, message: str) -> None:
    (tmp_path / "area.toml").write_text(table)
    with pytest.raises(TableError, match=message):
        load(tmp_path)


def one(**fields: object) -> Mutation:
    given = {"area": "a", "name": "m", "file": "f.py", "old": "x", "new": "y", "tests": ("t",)}
    return Mutation(**{**given, **fields})  # type: ignore[arg-type]


def test_the_place_must_be_clear() -> None:
    assert one().apply("1 + x") == "1 + y"
    with pytest.raises(ValueError, match="2 times"):
        one().apply("x + x")
    assert one(occurrence=1).apply("x + x") == "x + y"
    with pytest.raises(ValueError, match="no number 2"):
        one(occurrence=2).apply("x + x")
    with pytest.raises(ValueError, match="not Python"):
        one(new="(").apply("x")
    assert one(file="f.cc", new="(").apply("x") == "("


@pytest.mark.parametrize(
    "code, result",
    [
        (None, "timeout"),
        (0, "survived"),
        (1, "killed"),
        (2, "killed"),
        (-11, "killed"),
        (4, "error"),
        (5, "error"),
    ],
)
def test_verdicts(code: int | None, result: str) -> None:
    assert verdict(code, "text\nFAILED a.py::b - why\n")[0] == result


def test_a_change_within_a_second_is_seen(tmp_path: Path) -> None:
    """Python takes what it compiled by the source's size and its time in seconds."""
    module = tmp_path / "some_module.py"
    command = [sys.executable, "-c", "import some_module; print(some_module.x)"]
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    for value in ("1", "2", "3"):
        write_source(module, f"x = {value}\n")
        os.utime(module, (1e9, 1e9))
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == value


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_all_and_leaves_nothing(tree: Path, number: int) -> None:
    (tree / "test_code.py").write_text(
        TESTS.replace("assert code.bound", "time.sleep(60)\n    assert code.bound")
    )
    before = contents(tree)
    temporary = tree.parent / "temporary"
    temporary.mkdir()
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "scripts" / "mutate.py"), "--root", str(tree), "bound*one"],
        env={**os.environ, "TMPDIR": str(temporary)}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not list(temporary.glob("*/tree1/test_code.py")):
        assert time.monotonic() - started < 20
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(number)
    _, printed = process.communicate(timeout=20)
    assert process.returncode == 130 and "interrupted" in printed
    assert not list(temporary.iterdir()) and contents(tree) == before


def test_the_tables_apply() -> None:
    """Every mutation still finds its place. When a source changes, its mutations change with it."""
    mutations = load(ROOT / "scripts" / "mutations")
    lost = [o for o in listed(ROOT, mutations) if o.result == "does not apply"]
    assert [(o.mutation.name, o.detail) for o in lost] == []
    assert sum(not m.equivalent for m in mutations) >= 80
    assert [m.name for m in mutations for t in m.tests if not (ROOT / t.split("::")[0]).is_file()] == []


def test_no_mutation_uses_an_undefined_name(tmp_path: Path) -> None:
    """A ``NameError`` would be noticed whatever the tests are."""
    ruff = Path(sys.executable).with_name("ruff")
    if not ruff.exists():
        pytest.skip("ruff is not installed")
    mutations = [m for m in load(ROOT / "scripts" / "mutations") if m.file.endswith(".py")]
    for m in mutations:
        text = m.apply((ROOT / m.file).read_text(encoding="utf-8"))
        (tmp_path / f"{m.name}.py").write_text(text, encoding="utf-8")
    (tmp_path / "undefined.py").write_text("f(_g)\n", encoding="utf-8")
    command = [
        str(ruff),
        "check",
        "--isolated",
        "--no-cache",
        "--select",
        "F821",
        "--output-format",
        "concise",
    ]
    found = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False).stdout
    assert {line.split(".py:")[0].split("/")[-1] for line in found.splitlines() if "F821" in line} == {
        "undefined"
    }


def test_the_page_lists_all_mutations() -> None:
    page = (ROOT / "docs" / "mutation-testing.md").read_text(encoding="utf-8")
    shown = page.split(MARKS[0])[1].split(MARKS[1])[0]
    rows = [[cell.strip() for cell in line.split("|")[1:4]] for line in shown.strip().splitlines()[2:]]
    expected = sorted((m.area, m.name) for m in load(ROOT / "scripts" / "mutations"))
    assert [(area, name.strip("`")) for area, name, _ in rows] == expected
    assert all(re.match("killed|timeout|equivalent: ", result) for *_, result in rows)


@pytest.mark.parametrize("text", [None, "no marks"])
def test_a_page_without_marks_is_told_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None
) -> None:
    page = tmp_path / "page.md"
    if text is not None:
        page.write_text(text)
    assert main(["--markdown", str(page)]) == 2
    assert "page.md" in capsys.readouterr().err
