# SPDX-License-Identifier: Apache-2.0
"""Limits of the memory that a model's data may take."""

from __future__ import annotations

import pytest

from tvm_stitch.support import memory
from tvm_stitch.support.memory import LIMIT, TooLarge, asked_limit, available_bytes, check_bytes, most_bytes


def test_data_in_proportion_to_the_file_pass() -> None:
    check_bytes(10_000, 5_000, "it")
    with pytest.raises(
        TooLarge, match=rf"it takes 3 GiB, more than 1 GiB, .* file of 100 bytes; .*{LIMIT}=3G"
    ):
        check_bytes(3 << 30, 100, "it")
    check_bytes(3 << 30, 1 << 28, "it", per_byte=12)
    with pytest.raises(TooLarge, match="more than 2.75 GiB"):
        check_bytes(3 << 30, 1 << 28, "it", per_byte=11)


def test_the_variable_replaces_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 1 << 40)
    for text, limit in (("8G", 8 << 30), ("5 MiB", 5 << 20), ("123", 123), ("2kb", 2048)):
        monkeypatch.setenv(LIMIT, text)
        assert asked_limit() == limit
        check_bytes(limit, 1, "it")
        with pytest.raises(TooLarge, match=LIMIT):
            check_bytes(limit + 1, 1, "it")
    monkeypatch.setenv(LIMIT, "much")
    with pytest.raises(TooLarge, match="TVM_STITCH_MODEL_BYTES=much is no number of bytes"):
        asked_limit()


def test_no_more_than_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 << 24 < available_bytes() < 1 << 48
    monkeypatch.setattr(memory, "available_bytes", lambda: 1 << 20)
    monkeypatch.setenv(LIMIT, "1T")
    assert most_bytes(1) == 1 << 20
    with pytest.raises(TooLarge, match=r"this machine has 1 MiB left"):
        check_bytes(1 << 21, 1, "it")
