# SPDX-License-Identifier: Apache-2.0
"""The recipe of a container: its files exist, its commands are those of today, and the page shows it."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from tests.test_packaging import PROJECT
from tvm_stitch.cli.program import parser

ROOT = Path(__file__).resolve().parents[2]
LINES = (ROOT / "examples" / "Dockerfile").read_text(encoding="utf-8").splitlines()
STEPS = [line.split(" ", 1) for line in LINES if line and not line.startswith("#")]


def test_copied_files_exist() -> None:
    copied = [shlex.split(text) for step, text in STEPS if step == "COPY"]
    own = [source for files in copied for source in files[:-1] if not files[0].startswith("--from")]
    assert [source for source in own if not (ROOT / source).exists()] == ["${MODEL}"]
    assert {"pyproject.toml", PROJECT["readme"], "tvm_stitch"} <= set(own)


def test_commands_are_understood() -> None:
    run = [shlex.split(text) for step, text in STEPS if step == "RUN" and text.startswith("tvm-stitch")]
    run += [json.loads(text) for step, text in STEPS if step == "CMD"]
    assert [parser().parse_args(words[1:]).command for words in run] == ["compile", "run"]


def test_a_python_of_the_range() -> None:
    images = [text for step, text in STEPS if step == "FROM"]
    versions = {re.match(r"python:(3\.\d+)-slim", image)[1] for image in images}
    assert len(images) == 2 and len(versions) == 1
    assert f"Programming Language :: Python :: {versions.pop()}" in PROJECT["classifiers"]


def test_the_page_shows_it() -> None:
    first = next(i for i, line in enumerate(LINES) if line.startswith("FROM"))
    page = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    assert f"```dockerfile\n{chr(10).join(LINES[first:])}\n```" in page
