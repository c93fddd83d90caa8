# SPDX-License-Identifier: Apache-2.0
"""TVM targets, made from users' input, and checked because TVM would go on with a wrong one."""

from __future__ import annotations

import contextlib
import difflib
import io
import json
import platform
import re
from typing import Any

import tvm

from . import compat
from .support.cores import processors
from .support.quiet import without_native_stderr

DEFAULT_ARCH = "sm_90"

_LISTS = ("keys", "mattr", "libs", "cl-opt")
"""Options with lists as values."""

_USED_FEATURES = ("avx512bf16", "amx-tile", "amx-bf16", "amx-int8")
"""Features that kernels use in addition to those implied by a CPU's name."""

VECTORS_OF_BFLOAT16 = 17
"""First version of LLVM whose intrinsics take vectors of its type ``bfloat``."""

_LIMITS: dict[str, tuple[int, int | None]] = {
    "max_num_threads": (1, None),
    "max_shared_memory_per_block": (1, None),
    "max_threads_per_block": (1, None),
    "num-cores": (1, None),
    "opt-level": (0, 3),
    "registers_per_block": (1, None),
    "thread_warp_size": (1, None),
    "l2_cache_size_bytes": (0, None),
    "vector-width": (1, None),
}
"""The least and the greatest value of numeric options. TVM accepts any."""
_CUDA_LIMITS = _LIMITS | {
    "max_num_threads": (1, 1024),
    "max_threads_per_block": (1, 1024),
    "thread_warp_size": (32, 32),
}

_ARCHITECTURE = re.compile(r"(?:sm|compute)_(\d+)([a-z]?)")
_CAPABILITIES = (
    *(35, 37, 50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 88, 89),
    *(90, 100, 101, 103, 110, 120, 121),
)
"""Ten times the compute capabilities that NVIDIA's compilers support or supported, from Kepler on."""
_LEAST_WITH_SUFFIX = {"": 0, "a": 90, "f": 100}
_OTHER_NAMES = {
    "amd64": "x86_64",
    "arm64": "aarch64",
    "i486": "i386",
    "i586": "i386",
    "i686": "i386",
    "ppc": "powerpc",
    "ppc64": "powerpc64",
    "ppc64le": "powerpc64le",
    "sparc64": "sparcv9",
}
"""Architectures in a triple that LLVM's targets name differently."""


def resolve_target(target: tvm.target.Target | str | dict[str, Any]) -> tvm.target.Target:
    """Return a TVM Target with a host, from a Target or a description of one.

    Besides the values that ``tvm.target.Target`` takes, ``target`` may be:

    - ``"native"``: an llvm target for this machine's CPU and its number of processors,
    - a JSON object,
    - a kind with options, ``"cuda -arch=sm_80"``.

    A CUDA target without an architecture means this machine's device, or ``DEFAULT_ARCH`` if there is none. (TVM
    would assume an architecture that is too old for current models.)

    Raises:
        ValueError: if TVM knows no such target, or the CUDA architecture does not exist. Also for a CPU, a feature or
            a triple that LLVM does not know. LLVM would compile for its baseline instead, or crash. Also for numbers
            that no device has, such as blocks of no thread.
    """
    if not isinstance(target, tvm.target.Target):
        target = _made(_spec_of(target) if isinstance(target, str) else target)
    if "gpu" in target.keys and target.host is None:
        target = target.with_host(tvm.target.Target("llvm"))
    for each in (target, target.host):
        if each is not None:
            _check(each)
    return target


def other_machine(target: tvm.target.Target) -> str:
    """Return the CPU architecture of a target's host code, such as ``"aarch64"``, or "" if it is this machine's."""
    host = target.host or target
    triple = str(dict(host.attrs).get("mtriple") or "") if host.kind.name == "llvm" else ""
    machine = triple.split("-", 1)[0]
    return "" if machine == platform.machine() else machine


def has_feature(target: tvm.target.Target, name: str) -> bool:
    """Return whether the CPU of an llvm target has a feature, by LLVM's name."""
    return bool(tvm.get_global_func("target.target_has_feature")(name, target))


def vectors_of(target: tvm.target.Target) -> tuple[int, int]:
    """Return the float32 lanes and the number of the vector registers of an llvm target's CPU."""
    if has_feature(target, "avx512f"):
        return 16, 32
    if has_feature(target, "avx"):
        return 8, 16
    return 4, 32 if has_feature(target, "neon") else 16


def multiplies_bfloat16(target: tvm.target.Target) -> bool:
    """Return whether the CPU of an llvm target multiplies pairs of bfloat16, and TVM has code for it."""
    if not compat.COMPUTES_BFLOAT16 or llvm_version() < VECTORS_OF_BFLOAT16:
        return False
    return has_feature(target, "avx512bf16")


def llvm_version() -> int:
    """Return the major version of TVM's LLVM."""
    return int(tvm.target.codegen.llvm_version_major())


def this_cpu() -> dict[str, Any]:
    """Return an llvm target for this machine's CPU, as a dictionary for ``tvm.target.Target``.

    A virtual machine may hide some of a CPU's instructions. LLVM then takes the CPU for an older one, and leaves
    out other instructions that it has. Those that kernels use are added. Or LLVM knows the CPU by its number, and
    counts in instructions that are hidden. Those of AMX are taken away.
    """
    spec: dict[str, Any] = {"kind": "llvm", "mcpu": str(tvm.target.codegen.llvm_get_system_cpu())}
    here, named = _features_here(), tvm.target.Target(spec)
    changed = [f"+{name}" for name in _USED_FEATURES if name in here and not has_feature(named, name)]
    if here:
        hidden = [name for name in _USED_FEATURES if name.startswith("amx-") and name not in here]
        changed += [f"-{name}" for name in hidden if has_feature(named, name)]
    return {**spec, "mattr": changed} if changed else spec


def _features_here() -> set[str]:
    """Return the features that LLVM detects on this machine's CPU. Empty if TVM does not report them."""
    features_of_host = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures", allow_missing=True)
    return {str(name) for name, has in (features_of_host() if features_of_host else {}).items() if has}


def _spec_of(text: str) -> Any:
    """Return the value for TVM that corresponds to a text."""
    text = text.strip()
    words = text.split()
    if not words:
        raise ValueError("no target is given; give native, llvm, cuda, or one of TVM's")
    if text == "native":
        return {**this_cpu(), "num-cores": processors()}
    if words[0] == "native":
        raise ValueError("native is this machine's CPU and takes no options; give llvm with them")
    if text == "cuda":
        return {"kind": "cuda"}
    if text.startswith("{"):
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"no valid JSON ({error})") from None
    if len(words) > 1 and not compat.READS_TARGET_OPTIONS:
        return {"kind": words[0], **dict(map(_option, words[1:]))}
    return text


def _option(word: str) -> tuple[str, Any]:
    key, equals, value = word.lstrip("-").partition("=")
    if not word.startswith("-") or not equals:
        raise ValueError(f"target options are written -key=value, got {word!r}")
    if key in _LISTS:
        return key, value.split(",")
    return key, int(value) if re.fullmatch(r"-?\d+", value) else value


def _made(spec: Any) -> tvm.target.Target:
    if not isinstance(spec, (str, dict)):
        raise ValueError(
            f"a target is a text, a dictionary or a tvm.target.Target, not {type(spec).__name__}; give native, llvm, "
            "cuda, or one of TVM's"
        )
    if isinstance(spec, dict) and spec.get("kind") == "cuda" and "arch" not in spec and not tvm.cuda(0).exist:
        spec = {**spec, "arch": DEFAULT_ARCH}
    try:
        # TVM prints messages about devices and toolkits that it does not find. The target shows what it assumes
        # instead.
        with without_native_stderr(), contextlib.redirect_stdout(io.StringIO()):
            return tvm.target.Target(spec)
    except (TypeError, ValueError) as error:
        if match := re.search(r"Option '([\w-]+)': expected type '(\w+)'", str(error)):
            kind = {"int": "an integer", "bool": "true or false"}.get(match[2], f"a value of type {match[2]}")
            raise ValueError(f"the option {match[1]} takes {kind}") from None
        if match := re.search(r'Target kind "(.*?)" is not defined', str(error), re.S):
            raise ValueError(f"there is no target {match[1]!r}; {_like(match[1])}") from None
        raise ValueError(_without_internals(str(error))) from None


def _like(name: str) -> str:
    """Return a suggestion for an unknown target name."""
    tags = getattr(tvm.target, "list_tags", lambda: None)() or ()
    if _ARCHITECTURE.fullmatch(name):
        return f"did you mean cuda -arch={name}?"
    known = ["native", "llvm", "cuda", *map(str, tags)]
    meant = _MEANT.get(name.lower()) or next((each for each in known if each.lower() == name.lower()), None)
    near = [meant] if meant else difflib.get_close_matches(name, known, 3, 0.8)
    return f"did you mean {' or '.join(near)}?" if near else "give native, llvm, cuda, or a tag of TVM's"


_MEANT = {"cpu": "native", "x86": "native", "host": "native", "gpu": "cuda", "nvidia": "cuda"}
"""Common words for targets, with their names."""


def _without_internals(text: str) -> str:
    """Return TVM's message about a target, without the failed condition of its sources, and without the target."""
    text = re.sub(r"^Check failed: .*? is false: ", "", text.split(". Target creation from ", 1)[0])
    return (
        text.replace("an invalid GFX version: -mcpu=", "an invalid GFX version: ") or "TVM does not take it"
    )


def arch_of(device: tvm.runtime.Device) -> str:
    """Return the architecture of a CUDA device that is present, such as ``"sm_90"``."""
    return "sm_" + "".join(str(device.compute_version).split(".")[:2])


def capability_of(target: tvm.target.Target) -> int:
    """Return ten times the compute capability of a CUDA target, or 0 if its architecture names none."""
    return capability_in(str(dict(target.attrs).get("arch", "")))


def capability_in(arch: str) -> int:
    """Return ten times the compute capability that an architecture such as ``"sm_90a"`` names, or 0 for other
    names.
    """
    match = _ARCHITECTURE.fullmatch(arch)
    return int(match[1]) if match else 0


def _check(target: tvm.target.Target) -> None:
    attributes = dict(target.attrs)
    _check_numbers(attributes, _CUDA_LIMITS if target.kind.name == "cuda" else _LIMITS)
    if target.kind.name == "cuda":
        _check_architecture(str(attributes.get("arch") or DEFAULT_ARCH))
    if target.kind.name != "llvm":
        return
    triple = str(attributes.get("mtriple") or "")
    if triple and not _is_known(triple):
        raise ValueError(f"LLVM has no code for {triple!r}; give a triple such as x86_64-linux-gnu")
    cpu = str(attributes.get("mcpu") or "")
    if cpu and not _is_valid(cpu, triple):  # checked first, since the list takes time
        known = _cpus(triple)
        if known and cpu not in known:
            near = difflib.get_close_matches(cpu, known, 3) or [_own_cpu(known)]
            where = f" of {triple}" if triple else ""
            raise ValueError(f"LLVM knows no CPU {cpu!r}{where}; did you mean {' or '.join(near)}?")
    _check_features([str(name) for name in attributes.get("mattr") or ()], triple)


def _check_numbers(attributes: dict[str, Any], limits: dict[str, tuple[int, int | None]]) -> None:
    """Raise a ValueError for a number that no device has, or no compiler accepts."""
    for name, (least, most) in limits.items():
        if (value := attributes.get(name)) is None:
            continue
        value = int(value)
        if value >= least and (most is None or value <= most):
            continue
        meant = f"at least {least}" if most is None else str(least) if least == most else f"{least} to {most}"
        raise ValueError(f"{name} must be {meant}, got {value}")


def _check_features(features: list[str], triple: str) -> None:
    """Raise a ValueError for a CPU feature that LLVM does not know, because LLVM would ignore it."""
    names = [feature.lstrip("+-") for feature in features]
    features_of = getattr(tvm.target.codegen, "llvm_get_cpu_features", None)
    if not names or features_of is None:
        return
    spec = {"kind": "llvm", "mattr": [f"+{name}" for name in names]}
    known = features_of(tvm.target.Target(spec | ({"mtriple": triple} if triple else {})))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(
            f"LLVM knows no feature {unknown[0]!r} of {triple or 'this kind of CPU'}; leave it out of -mattr"
        )


def _check_architecture(arch: str) -> None:
    """Raise a ValueError for an unknown NVIDIA architecture. That of this machine's device is accepted, however
    new.
    """
    match = _ARCHITECTURE.fullmatch(arch)
    if match is None:
        raise ValueError(f"{arch!r} is not a CUDA architecture; give one such as {DEFAULT_ARCH}")
    number, least = int(match[1]), _LEAST_WITH_SUFFIX.get(match[2])
    if number in _CAPABILITIES and least is not None and number >= least:
        return
    if tvm.cuda(0).exist and arch == arch_of(tvm.cuda(0)):
        return
    near = min(_CAPABILITIES, key=lambda known: (abs(known - number), known))
    raise ValueError(f"NVIDIA has no architecture {arch!r}; did you mean sm_{near}?")


def _is_valid(cpu: str, triple: str) -> bool:
    """Return whether LLVM accepts a CPU's name, if TVM reports it. LLVM accepts more than it lists, such as
    apple-m1.
    """
    codegen = tvm.target.codegen
    is_valid = getattr(codegen, "llvm_is_valid_cpu", lambda *_: False)
    return bool(is_valid(cpu, triple or codegen.llvm_get_system_triple()))


def _own_cpu(known: list[str]) -> str:
    own = str(tvm.target.codegen.llvm_get_system_cpu())
    return own if own in known else "generic"


def _is_known(triple: str) -> bool:
    """Return whether LLVM has code for a triple's architecture, judged by its name."""
    arch = triple.split("-", 1)[0]
    arch = _OTHER_NAMES.get(arch, arch)
    return any(arch.startswith(str(known)) for known in tvm.target.codegen.llvm_get_targets())


def _cpus(triple: str) -> list[str]:
    """Return the CPUs that TVM's LLVM knows for a triple ("": this machine's)."""
    spec = {"kind": "llvm", "mtriple": triple} if triple else {"kind": "llvm"}
    return sorted(map(str, tvm.target.codegen.llvm_get_cpu_archlist(tvm.target.Target(spec))))
