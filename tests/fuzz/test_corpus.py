# SPDX-License-Identifier: Apache-2.0
"""All findings of the fuzzer: cases under ``corpus`` pass, those under ``open`` wait to be mended."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzzing.case import Case
from fuzzing.execute import Settings, check

HERE = Path(__file__).parent


def _check(path: Path) -> None:
    case = Case.from_json(path.read_text())
    for_gpu = isinstance(case.target, dict) and case.target["kind"] == "cuda"
    outcome = check(case, Settings("emulator" if for_gpu else "llvm"))
    assert outcome.kind == "ok", f"{case.note}: {outcome.kind}: {outcome.detail}"
    assert outcome.judged > 0


@pytest.mark.checks_kernels
@pytest.mark.parametrize("path", sorted((HERE / "corpus").glob("*.json")), ids=lambda p: p.stem)
def test_what_was_found_stays_mended(path: Path) -> None:
    _check(path)


@pytest.mark.checks_kernels
@pytest.mark.parametrize("path", sorted((HERE / "open").glob("*.json")), ids=lambda p: p.stem)
def test_what_is_not_mended_yet(path: Path) -> None:
    try:
        _check(path)
    except AssertionError as error:
        pytest.xfail(str(error))
    pytest.fail("it passes: move it to tests/fuzz/corpus")
