# SPDX-License-Identifier: Apache-2.0
"""Records of what the compiler makes: equal for equal code, and compared line by line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import snapshot

pytest.importorskip("torch")  # of which some workloads are made


def test_a_record_is_equal_to_itself_and_not_to_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("before", "after"):
        command = [
            "record",
            str(tmp_path / folder),
            "--random",
            "1",
            "--jobs",
            "1",
            "--only",
            r"^random-0\.llvm$",
        ]
        assert snapshot.main(command) == 0
    (made,) = (tmp_path / "after").iterdir()
    text = gzip.decompress(made.read_bytes()).decode()
    assert text.startswith("structural hash") and "T.prim_func" in text and "raised" not in text
    compare = ["compare", str(tmp_path / "before"), str(tmp_path / "after")]
    assert snapshot.main(compare) == 0
    assert "1 records compared, 0 differ" in capsys.readouterr().out
    made.write_bytes(gzip.compress(text.replace("structural hash", "another hash").encode()))
    assert snapshot.main(compare) == 1
    assert "+another hash" in capsys.readouterr().out
    (tmp_path / "after" / "new.llvm.gz").write_bytes(b"")
    assert snapshot.main(compare) == 1
    assert "not in" in capsys.readouterr().out
