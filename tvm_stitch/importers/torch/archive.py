# SPDX-License-Identifier: Apache-2.0
"""Read programs of torch.export without running code that their files contain.

``torch.export.load`` unpickles example inputs and custom objects, and loads compiled libraries of the archive. Each of
them may run any code. This reader takes the graph, the weights and the constants only. Pickled tensors are read by
PyTorch's reader of plain data. ``checked_program`` checks the graph's text. The archive's directory says how many
bytes it holds, so its size is checked before anything is unpacked.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch._export.serde import schema
from torch._export.serde.serialize import (
    ExportedProgramDeserializer,
    _dict_to_dataclass,
    deserialize_device,
    deserialize_scalar_type,
)
from torch.export.pt2_archive import constants as layout
from torch.export.pt2_archive._package import PT2ArchiveReader

from ...support.failures import error_text, reraise_fatal
from ...support.memory import PER_BYTE, TooLarge, check_bytes
from .checked_program import UnsafeProgram, checked_program
from .importing.guards import KEPT

TEXT_COST = 24
"""Bytes of Python objects for each byte of a graph's text, measured 20 with a graph of 4800 nodes."""

_OLD = "serialized_exported_program.json"
"""The graph's text in archives of PyTorch 2.1 to 2.7."""


def load_program(path: Path) -> Any:
    """Return the program of a ``.pt2`` file, without its example inputs.

    Args:
        path: the file.

    Returns:
        A ``torch.export.ExportedProgram``.

    Raises:
        UnsafeProgram: if the program needs Python objects or code of the file.
        TooLarge: if it takes more memory than such a file may.
        Exception: of many kinds, for a file that torch.export did not write.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        entries = _entries(file, size)
    if _OLD in entries:
        return _older_program(path, size)
    archive = PT2ArchiveReader(str(path))
    names = set(archive.get_file_names())
    prefix, suffix = layout.MODELS_FILENAME_FORMAT.split("{}")
    models = [n[len(prefix) : -len(suffix)] for n in names if n.startswith(prefix) and n.endswith(suffix)]
    model = "model" if "model" in models or len(models) != 1 else models[0]
    if model not in models:
        raise UnsafeProgram(f"the archive holds {len(models)} programs, none of them named 'model'")
    text = archive.read_bytes(layout.MODELS_FILENAME_FORMAT.format(model))
    read = _Tensors(archive, names, size)
    state = read.of(model, layout.WEIGHTS_DIR, layout.WEIGHTS_CONFIG_FILENAME_FORMAT)
    constants = read.of(model, layout.CONSTANTS_DIR, layout.CONSTANTS_CONFIG_FILENAME_FORMAT)
    return _deserialized(text, state, constants)


def _entries(file: Any, size: int) -> dict[str, int]:
    """Return the bytes of an archive's entries by name, after a check of their sum.

    Raises:
        TooLarge: if the entries unpacked take too much memory.
    """
    with zipfile.ZipFile(file) as archive:
        infos = archive.infolist()
    text = sum(info.file_size for info in infos if info.filename.endswith(".json"))
    check_bytes(sum(info.file_size for info in infos), size, "the archive unpacked")
    check_bytes(TEXT_COST * text, size, "the archive's graph", TEXT_COST * PER_BYTE)
    return {info.filename: info.file_size for info in infos}


def _deserialized(text: bytes, state: Mapping[str, Any], constants: Mapping[str, Any]) -> Any:
    parsed = _parsed(text)
    data = checked_program(parsed)
    program = _dict_to_dataclass(schema.ExportedProgram, data)
    found = ExportedProgramDeserializer().deserialize(program, dict(state), dict(constants), None)
    setattr(found, KEPT, parsed.get("guards_code") or ())  # texts to read: PyTorch would run them
    return found


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise UnsafeProgram("its text is nested too deeply") from None


class _Tensors:
    """Reads the tensors of an archive.

    Args:
        archive: PyTorch's reader of the archive.
        names: names of its records.
        size: bytes of the file.
    """

    def __init__(self, archive: Any, names: set[str], size: int):
        self._archive, self._names, self._size = archive, names, size
        self._bytes = 0

    def of(self, model: str, folder: str, config: str) -> dict[str, Any]:
        """Return the tensors of a folder of the archive by name."""
        if (old := f"{folder}{model}.pt") in self._names:
            return _plain(self._archive.read_bytes(old), self._size)
        entries = _dict_to_dataclass(
            schema.PayloadConfig, _parsed(self._archive.read_bytes(config.format(model)))
        ).config
        self._check(entries)
        storages: dict[Any, Any] = {}
        return {name: self._tensor(folder, entry, storages) for name, entry in entries.items()}

    def _check(self, entries: Mapping[str, Any]) -> None:
        """Check the sizes that tensors say they have, which may be more than their bytes in the archive.

        Raises:
            TooLarge: if they take too much memory.
        """
        for entry in entries.values():
            if (meta := entry.tensor_meta) is None:
                continue
            shape = [each.as_int for each in meta.sizes]
            self._bytes += math.prod(shape) * deserialize_scalar_type(meta.dtype).itemsize
        check_bytes(self._bytes, self._size, "the program's tensors")

    def _tensor(self, folder: str, entry: Any, storages: dict[Any, Any]) -> Any:
        record = f"{folder}{entry.path_name}"
        if entry.use_pickle:
            if entry.path_name.startswith(
                (layout.CUSTOM_OBJ_FILENAME_PREFIX, layout.OPAQUE_OBJ_FILENAME_PREFIX)
            ):
                raise UnsafeProgram(
                    "it holds a pickled Python object; export a module whose constants are tensors"
                )
            return _plain(self._archive.read_bytes(record), self._size)
        meta = entry.tensor_meta
        dtype = deserialize_scalar_type(meta.dtype)
        shape = [each.as_int for each in meta.sizes]
        count = self._archive.archive_file.get_record_size(record) // dtype.itemsize
        if not count:  # a tensor without elements, or one of a program that was exported without its weights
            tensor = torch.zeros(shape, dtype=dtype)
        else:
            if (record, dtype) not in storages:
                raw = self._archive.archive_file.get_storage_from_record(record, count, dtype)
                storages[record, dtype] = torch.empty(0, dtype=dtype).set_(
                    raw.untyped_storage(), 0, (count,), (1,)
                )
            stride = [each.as_int for each in meta.strides]
            tensor = torch.as_strided(storages[record, dtype], shape, stride, meta.storage_offset.as_int)
        tensor = tensor.to(deserialize_device(meta.device))
        if entry.is_param:
            return torch.nn.Parameter(tensor, requires_grad=meta.requires_grad)
        return tensor


def _plain(pickled: bytes, size: int) -> Any:
    """Return the tensors that ``torch.save`` wrote, read as plain data.

    Raises:
        UnsafeProgram: if they need other Python objects.
        TooLarge: if they take too much memory.
    """
    if not pickled:
        return {}
    if not zipfile.is_zipfile(io.BytesIO(pickled)):
        raise UnsafeProgram("it holds a bare pickle, which may run any code; export the program again")
    _entries(io.BytesIO(pickled), size)
    try:
        found = torch.load(io.BytesIO(pickled), map_location="cpu", weights_only=True)
    except Exception as error:  # of many kinds: of pickles, archives, and of PyTorch's own checks
        reraise_fatal(error)
        first = error_text(error).partition(". ")[0]
        raise UnsafeProgram(
            f"it holds a pickled Python object that is no tensor ({first}); export a module of plain tensors"
        ) from None
    tensors = found.values() if isinstance(found, dict) else [found]
    if not all(isinstance(each, torch.Tensor) for each in tensors):
        raise UnsafeProgram("it holds a pickled value that is no tensor; export a module of plain tensors")
    check_bytes(sum(t.numel() * t.element_size() for t in tensors), size, "the program's tensors")
    return found


def _older_program(path: Path, size: int) -> Any:
    """Return the program of an archive of PyTorch 2.1 to 2.7."""
    with zipfile.ZipFile(path) as archive:
        text = archive.read(_OLD)
        state, constants = (
            _plain(archive.read(name), size)
            for name in ("serialized_state_dict.pt", "serialized_constants.pt")
        )
    return _deserialized(text, state, constants)


__all__ = ["TooLarge", "UnsafeProgram", "load_program"]
