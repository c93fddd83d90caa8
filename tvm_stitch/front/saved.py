# SPDX-License-Identifier: Apache-2.0
"""The folder of a compiled model, written: its library, its manifest, and the state that it begins with."""

from __future__ import annotations

import json
import logging
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from ..config import StitchConfig
from ..deploy import export
from ..deploy.cpu_check import link_options
from ..deploy.cpu_flags import needed_flags
from ..deploy.folder import LIBRARY, MANIFEST, STATE, NotCompiled
from ..deploy.linking import linking
from ..deploy.scopes import without_empty_scopes
from ..deploy.versions import versions
from ..execution.count import count_lowered
from ..relax.build import Built
from ..relax.lowering.needs import needs, without_python
from ..support.failures import error_text, reraise_fatal
from ..support.quiet import without_native_stderr
from .signature import Signature
from .tensors import aligned, kind_of

_LOG = logging.getLogger(__name__)


def facts_of(built: Built, target: tvm.target.Target, config: StitchConfig) -> dict[str, Any]:
    """Return what the manifest says of a compilation, as plain data.

    Args:
        built: the result of the compilation.
        target: the target.
        config: stitching options.
    """
    return {
        "target": json.loads(str(target)),
        "cpu_flags": needed_flags(target),
        "config": config.to_dict(),
        "kernels": count_lowered(built.lowered, target).to_dict(),
        "stitched": sorted(built.recorder.plans),
        "left": dict(built.recorder.declined),
        "needs": needs(built.lowered, target),
        "versions": versions(),
    }


def write(
    folder: Path,
    executable: Any,
    target: tvm.target.Target,
    signature: Signature,
    facts: Mapping[str, Any],
    tell: Callable[[str], None] = _LOG.warning,
) -> dict[str, Any]:
    """Write a compiled model to a folder. Return the manifest.

    Args:
        folder: the folder, which exists.
        executable: TVM's executable.
        target: the target that it is compiled for.
        signature: how the model is called.
        facts: more entries of the manifest.
        tell: is called with a sentence if CUDA kernels are not compiled now.

    Raises:
        ValueError: if PyTorch does not write the types that the model takes and returns.
        LinkError: if the library cannot be linked.
    """
    called = signature.to_dict()
    compiled = _export(executable, folder / LIBRARY, target, tell)
    data = {"library": LIBRARY, **facts, **called}
    if compiled:
        data["needs"] = without_python(data["needs"])
    write_manifest(folder, data, signature)
    return data


def write_manifest(folder: Path, data: Mapping[str, Any], signature: Signature) -> None:
    """Write the manifest and the state of a compiled model."""
    if signature.state:
        specs = signature.inputs[len(signature.arguments) :]
        arrays = [_array(value).astype(s.numpy_dtype) for s, value in zip(specs, signature.state.values())]
        np.savez(folder / STATE, *arrays)
    (folder / MANIFEST).write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def read_state(folder: Path, manifest: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the buffers that a compiled model changes, by name.

    Raises:
        NotCompiled: if their file is not there, or is not one of this model.
    """
    names = manifest.get("call", {}).get("state", [])
    if not names:
        return {}
    specs = Signature.of_dict({"inputs": manifest.get("inputs", [])}, {}).inputs[-len(names) :]
    try:
        with np.load(folder / STATE, allow_pickle=False) as file:
            arrays = [file[f"arr_{i}"] for i in range(len(names))]
        # NumPy stores types that it does not know as bytes.
        arrays = [a.view(s.numpy_dtype) if a.dtype.kind == "V" else a for s, a in zip(specs, arrays)]
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise NotCompiled(
            f"{folder / STATE} does not have the model's state ({error_text(error)}); compile the model again"
        ) from None
    return dict(zip(names, arrays))


def load_library(path: Path) -> tvm.relax.VMExecutable:
    """Return the executable of a model's library. Its code must be trusted.

    Raises:
        NotCompiled: if it does not have a model.
    """
    try:
        with without_native_stderr():
            module = tvm_ffi.load_module(_own_spelling(path.absolute()))  # TVM's would undo it
        return tvm.relax.VMExecutable(module)
    except (AttributeError, RuntimeError) as error:
        raise NotCompiled(f"{path} is not a compiled model: {error_text(error)}") from error


def _own_spelling(path: Path) -> str:
    """Return a path of a file by which no other file was loaded.

    The loader compares names: for the name of a library that it has, it does not look whether the file is a new one.
    """
    status = path.stat()
    files = _LOADED.setdefault(str(path), [])
    identity = status.st_ino, status.st_mtime_ns
    if identity not in files:
        files.append(identity)
    return f"{path.parent}/{'./' * files.index(identity)}{path.name}"


_LOADED: dict[str, list[tuple[int, int]]] = {}
"""By path the files that were loaded from it: their numbers and times of change."""


def _array(value: Any) -> np.ndarray:
    """Return a tensor of NumPy, PyTorch or TVM as an array."""
    if kind_of(value) == "torch":
        value = tvm.runtime.from_dlpack(aligned(value))
    return value if isinstance(value, np.ndarray) else np.asarray(value.numpy())


def _export(executable: Any, path: Path, target: tvm.target.Target, tell: Callable[[str], None]) -> bool:
    """Write a model's library, with compiled CUDA kernels if possible. Return whether they are compiled."""
    executable = without_empty_scopes(executable)
    if target.kind.name == "cuda" and export.kernel_compiler() is not None:
        try:
            export.export_library(executable, path, target)
            return True
        except Exception as error:  # the toolkit may be older than the architecture
            reraise_fatal(error)
            reason = f"{type(error).__name__}: {error_text(error)}".splitlines()[-1]
            tell(f"kernels are compiled when they are first launched: {reason}")
    with linking(path):
        executable.export_library(str(path), **link_options(target))
    return False
