# SPDX-License-Identifier: Apache-2.0
"""Objects in attributes, where TVM saves them and where it crashes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
import tvm
import tvm_ffi
from tvm import relax

from tvm_stitch.relax.few_rows import saving


@pytest.fixture
def crashing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As apache-tvm-ffi 0.1.15 does with TVM 0.27."""
    monkeypatch.setattr(tvm_ffi, "__version__", "0.1.99")
    monkeypatch.setattr(tvm.ir, "save_json", lambda _value: os.kill(os.getpid(), signal.SIGSEGV))
    saving.why_not_saved.cache_clear()
    yield
    saving.why_not_saved.cache_clear()


def test_a_crash_is_found_in_a_child(crashing: None) -> None:
    assert "apache-tvm-ffi 0.1.99 (its process ended (SIGSEGV)" in saving.why_not_saved()
    assert saving.why_not_saved().endswith("pip install apache-tvm-ffi==0.1.14.post1")
    kept = [relax.const(2.0, "float32"), 3]
    assert saving.loaded(saving.saved(kept)) is kept


def test_text_is_loaded_again() -> None:
    if saving.why_not_saved():
        pytest.skip("TVM saves nothing here")
    text = saving.saved([relax.const(2.0, "float32"), 3])
    constant, number = saving.loaded(text)
    assert isinstance(text, str) and float(constant.value.numpy()) == 2.0 and number == 3
