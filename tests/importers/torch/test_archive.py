# SPDX-License-Identifier: Apache-2.0
"""Reading archives of torch.export runs nothing of theirs, and takes no more memory than they justify."""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.importers.torch.hostile import Writes, changed, saved, text_of, with_text  # noqa: E402
from tvm_stitch.cli.errors import UsageError  # noqa: E402
from tvm_stitch.cli.readers.torch import read_torch  # noqa: E402
from tvm_stitch.importers.torch.archive import load_program  # noqa: E402
from tvm_stitch.support import memory  # noqa: E402
from tvm_stitch.support.memory import TooLarge  # noqa: E402


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("archive") / "model.pt2")


def _same(found: Any, source: Path) -> None:
    x, k = torch.randn(6, 8), torch.randn(6, 8)
    expected = torch.export.load(source).module()(x, k=k)
    for name, value in found.module()(x, k=k).items():
        assert torch.equal(value, expected[name])


def test_an_ordinary_program_is_read(ordinary: Path) -> None:
    found, expected = load_program(ordinary), torch.export.load(ordinary)
    assert {n: t.shape for n, t in found.state_dict.items()} == {
        n: t.shape for n, t in expected.state_dict.items()
    }
    assert found.state_dict["first.weight"].data_ptr() == found.state_dict["second.weight"].data_ptr()
    assert list(found.constants) == list(expected.constants)
    assert str(found.range_constraints) == str(expected.range_constraints)
    _same(found, ordinary)


def test_example_inputs_are_not_read(ordinary: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    path = changed(ordinary, tmp_path / "model.pt2", {"sample_inputs/model.pt": pickle.dumps(Writes(trace))})
    with contextlib.suppress(RuntimeError):  # it is no example input, once it has run
        torch.export.load(path)
    assert trace.exists()  # PyTorch's own reader runs it
    trace.unlink()
    read_torch(path, {}, names=False)
    assert not trace.exists()
    _same(load_program(path), ordinary)


@pytest.mark.parametrize("record", ["tensor_9", "opaque_obj_0", "custom_obj_0"])
@pytest.mark.parametrize("saved_by", ["pickle", "torch"])
def test_pickled_constants_run_nothing(ordinary: Path, tmp_path: Path, record: str, saved_by: str) -> None:
    trace, buffer = tmp_path / "trace", io.BytesIO()
    torch.save(Writes(trace), buffer)
    data = buffer.getvalue() if saved_by == "torch" else pickle.dumps(Writes(trace))
    config = text_of(ordinary, "model_constants_config.json")
    config["config"]["constant"] |= {"path_name": record, "use_pickle": True}
    path = with_text(
        ordinary, tmp_path / "a.pt2", lambda old: old.update(config), "model_constants_config.json"
    )
    path = changed(path, tmp_path / "b.pt2", {}, {f"data/constants/{record}": data})
    with pytest.raises(UsageError, match="pickle") as caught:
        read_torch(path, {}, names=False)
    assert not trace.exists() and "\n" not in str(caught.value)


def test_pickled_tensors_are_read(ordinary: Path, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save(torch.full((8,), 2.0), buffer)
    path = with_text(
        ordinary,
        tmp_path / "a.pt2",
        lambda c: c["config"]["constant"].update(path_name="tensor_9", use_pickle=True),
        "model_constants_config.json",
    )
    path = changed(path, tmp_path / "b.pt2", {}, {"data/constants/tensor_9": buffer.getvalue()})
    _same(load_program(path), ordinary)


def test_libraries_in_an_archive_are_not_loaded(ordinary: Path, tmp_path: Path) -> None:
    added = {
        "data/aotinductor/model/model.so": b"\x7fELF",
        "data/aotinductor/model/model_metadata.json": b"{}",
    }
    _same(load_program(changed(ordinary, tmp_path / "model.pt2", {}, added)), ordinary)


def test_an_archive_may_be_packed(ordinary: Path, tmp_path: Path) -> None:
    _same(load_program(changed(ordinary, tmp_path / "model.pt2", {}, packed=True)), ordinary)


def test_a_packed_archive_takes_no_more_than_its_size_justifies(
    ordinary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "SMALL", 1 << 20)
    path = changed(ordinary, tmp_path / "model.pt2", {"weight_1": bytes(1 << 22)}, packed=True)
    assert path.stat().st_size < 1 << 16
    with pytest.raises(
        UsageError, match=r"the archive unpacked takes 4\.\d* MiB, .* set TVM_STITCH_MODEL_BYTES=5M"
    ):
        read_torch(path, {}, names=False)
    monkeypatch.setenv("TVM_STITCH_MODEL_BYTES", "5M")
    load_program(path)


def test_a_tensor_is_no_larger_than_its_file_justifies(ordinary: Path, tmp_path: Path) -> None:
    def grow(config: Any) -> None:
        meta = config["config"]["expanded"]["tensor_meta"]
        meta["sizes"], meta["strides"] = [{"as_int": 1 << 32}, {"as_int": 8}], [{"as_int": 0}, {"as_int": 0}]

    path = with_text(ordinary, tmp_path / "model.pt2", grow, "model_weights_config.json")
    with pytest.raises(TooLarge, match="the program's tensors takes? 128 GiB"):
        load_program(path)


def test_a_tensor_without_bytes_is_no_larger_than_its_file_justifies(ordinary: Path, tmp_path: Path) -> None:
    def grow(config: Any) -> None:
        config["config"]["kept"]["tensor_meta"]["sizes"] = [{"as_int": 1 << 34}]

    path = with_text(ordinary, tmp_path / "a.pt2", grow, "model_weights_config.json")
    record = text_of(ordinary, "model_weights_config.json")["config"]["kept"]["path_name"]
    with pytest.raises(TooLarge):
        load_program(changed(path, tmp_path / "b.pt2", {f"data/weights/{record}": b""}))


def test_an_older_archive_is_read(ordinary: Path, tmp_path: Path) -> None:
    program, trace = torch.export.load(ordinary), tmp_path / "trace"
    records = {"serialized_exported_program.json": text_of(ordinary)}
    path = tmp_path / "old.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("version", "8.15")
        for name, data in records.items():
            archive.writestr(name, json.dumps(data))
        for name, tensors in (("state_dict", program.state_dict), ("constants", program.constants)):
            buffer = io.BytesIO()
            torch.save(dict(tensors), buffer)
            archive.writestr(f"serialized_{name}.pt", buffer.getvalue())
        archive.writestr("serialized_example_inputs.pt", pickle.dumps(Writes(trace)))
    _same(load_program(path), ordinary)
    assert not trace.exists()
