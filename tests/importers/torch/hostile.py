# SPDX-License-Identifier: Apache-2.0
"""Archives of torch.export that somebody has changed by hand."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


class Writes:
    """An object whose pickle writes a file when it is read."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"echo read > {self.path}",)


class Model(torch.nn.Module):
    """A module with weights, buffers of all kinds, a constant, a shared and an expanded weight, and a keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.second = torch.nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.register_buffer("kept", torch.arange(8.0))
        self.register_buffer("dropped", torch.full((8,), 0.5), persistent=False)
        self.expanded = torch.nn.Parameter(torch.ones(1).expand(8))
        self.constant = torch.full((8,), 2.0)

    def forward(self, x: torch.Tensor, *, k: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return two tensors by name."""
        y = self.second(self.first(x) + self.kept * self.dropped) + self.constant + self.expanded
        y = y + torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 8])
        return {"rows": torch.softmax(y.reshape(x.shape[0] * 2, 4), -1), "product": y * k}


def saved(path: Path) -> Path:
    """Write the model's program with rows of symbolic number."""
    torch.manual_seed(0)
    rows = torch.export.Dim("rows", max=100)
    program = torch.export.export(
        Model().eval(),
        (torch.randn(4, 8),),
        {"k": torch.randn(4, 8)},
        dynamic_shapes={"x": {0: rows}, "k": {0: rows}},
    )
    torch.export.save(program, path)
    return path


def changed(
    source: Path,
    path: Path,
    replaced: dict[str, bytes],
    added: dict[str, bytes] | None = None,
    packed: bool = False,
) -> Path:
    """Copy an archive with some records replaced, named by the ends of their paths, and with others added."""
    method = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w", method) as new:
        root = old.namelist()[0].partition("/")[0]
        for name in old.namelist():
            data = next((d for end, d in replaced.items() if name.endswith(end)), None)
            new.writestr(name, old.read(name) if data is None else data)
        for name, data in (added or {}).items():
            new.writestr(f"{root}/{name}", data)
    return path


def text_of(source: Path, end: str = "models/model.json") -> Any:
    """Return the JSON of a record."""
    with zipfile.ZipFile(source) as archive:
        return json.loads(archive.read(next(n for n in archive.namelist() if n.endswith(end))))


def with_text(
    source: Path, path: Path, change: Callable[[Any], None], end: str = "models/model.json"
) -> Path:
    """Copy an archive with the JSON of a record changed in place by ``change``."""
    data = text_of(source, end)
    change(data)
    return changed(source, path, {end: json.dumps(data).encode()})
