# SPDX-License-Identifier: Apache-2.0
"""StitchConfig: every option, validated and documented."""

from __future__ import annotations

import difflib
import operator
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any


@dataclass(frozen=True, init=False)
class StitchConfig:
    """Options of stitching.

    Attributes:
        strict: raise a StitchError if a memory-intensive operator cannot be stitched, instead of leaving it to TVM.
        max_operators: most operators (blocks) in one stitch op. This bounds the size of a kernel's code.
        max_arguments: most tensors that a stitch op reads and writes. A kernel can have only so many parameters.
        epilogues: leave biases, residuals and activations in the kernel of the matmul or convolution before them.
            If TVM's schedules compute them in registers (GPUs, and CPUs in Relay), all that cost no traffic there
            are left. Otherwise only those are left that save a kernel or a round trip through memory.
        horizontal_fusion: join stitch ops that do not depend on each other into one launch (remote stitching in the
            paper). Its old name, ``remote``, still works.
        clusters: spread a long row over the blocks of a thread-block cluster, if the device has clusters.
        grid_barriers: let values of one kernel cross blocks through device memory, behind a grid barrier. Such a
            kernel is launched cooperatively and needs the whole device. Without this option, a kernel ends instead.
        plain_launch_barriers: use grid barriers even if TVM's runtime cannot launch cooperatively (TVMs with
            Relay). The kernel then waits in a plain launch, which is sound if all its blocks become resident. No
            other kernel that waits like that may run on the device at the same time (one stream, one process). Two
            on two streams can stop the device for ever, so it is off by default.
        multiprocessors: number of a GPU's multiprocessors that kernels can count on, if not the usual number.
            Examples are a slice of a GPU, or another model of the architecture. The value 0 means those of this
            machine's device if it has the target's architecture, else the usual number. Kernels with grid barriers
            have as many blocks as these hold at once.
        compute: selects what computes matrix products, convolutions and attention. ``"auto"``, on CUDA devices:
            cuBLASLt and cuDNN if the compiling machine has them, and this package's kernel for exact convolutions
            of float32. ``"auto"``, on CPUs: this package's templates. ``"libraries"``: the same, but cuDNN for all
            convolutions, and the libraries even if that machine lacks them. ``"templates"``: the same as
            ``"auto"``, and in Relay templates come before a tuner's schedules and a target's library. ``"tvm"``:
            always TVM's schedules. Kinds of operators (``matmul``, ``convolution``, ``attention``) may have a
            separate word: ``"auto, attention=tvm"``. Attention is one kernel of this package, or cuDNN's for half
            types where that is faster. ``"templates"`` is that kernel alone. With ``"tvm"`` its products and softmax
            are computed one by one.
        cuda_graph: capture the calls of static shapes and replay them as CUDA graphs, with one launch for all of
            them.
        tf32: let the libraries round float32 operands to TensorFloat-32, of 10 bits' precision.
        scaled_weights: multiply scales of batch norms into weights of half types, which rounds these again.
        packed_arguments: let a kernel pack weights of convolutions that are arguments in each call on a CPU, as
            ``torch.compile`` does. The convolution is faster, and a call launches one more kernel for each weight.
        tvm_thread_pool: run parallel regions of CPU code in TVM's thread pool, instead of this package's launcher.

    Raises:
        ValueError: for an unknown option or a bad value. The message names the choices.
    """

    strict: bool = False
    max_operators: int = 400
    max_arguments: int = 160
    epilogues: bool = True
    horizontal_fusion: bool = True
    clusters: bool = True
    grid_barriers: bool = True
    plain_launch_barriers: bool = False
    multiprocessors: int = 0
    compute: str = "auto"
    cuda_graph: bool = False
    tf32: bool = False
    scaled_weights: bool = False
    packed_arguments: bool = False
    tvm_thread_pool: bool = False

    def __init__(self, **options: Any):
        known = {f.name: f for f in fields(self)}
        for old in _WITHOUT_EFFECT & set(options):
            warnings.warn(
                f"option {old!r} has no effect and will be removed", DeprecationWarning, stacklevel=2
            )
            del options[old]
        for old, new in _RENAMED.items():
            if old in options:
                warnings.warn(f"option {old!r} is called {new!r} now", DeprecationWarning, stacklevel=2)
                if new in options:
                    raise ValueError(f"options {old!r} and {new!r} are the same: give {new!r} only")
                options[new] = options.pop(old)
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ValueError(f"unknown option {name!r}{hint} (options: {', '.join(sorted(known))})")
        for name, field in known.items():
            value = options.get(name, field.default)
            object.__setattr__(self, name, _checked(name, value, field.default))

    def limited(self, max_operators: int, max_arguments: int) -> StitchConfig:
        """Return the same configuration with limits no higher than those given."""
        operators, arguments = min(self.max_operators, max_operators), min(self.max_arguments, max_arguments)
        return replace(self, max_operators=operators, max_arguments=arguments)

    def compute_of(self, kind: str) -> str:
        """Return the word of ``compute`` for ``"matmul"``, ``"convolution"`` or ``"attention"``."""
        general, special = _choices(self.compute)
        return special.get(kind, general)

    @property
    def of_tvm(self) -> frozenset[str]:
        """The kinds of operators for which TVM's schedules are selected."""
        return frozenset(kind for kind in _KINDS if self.compute_of(kind) == "tvm")

    def to_dict(self) -> dict[str, Any]:
        """Return the options as plain data."""
        return asdict(self)


ASKED = "TVM's schedules are asked for"
"""Reason for operators of a kind in ``StitchConfig.of_tvm``."""
_RENAMED = {"remote": "horizontal_fusion"}
# Sums are the same in every run, because partial results are combined in a fixed order.
_WITHOUT_EFFECT = {"deterministic"}
_LEAST = {"max_operators": 1, "max_arguments": 2}
_COMPUTE = ("auto", "libraries", "templates", "tvm")
_KINDS = ("matmul", "convolution", "attention")


def _checked(name: str, value: Any, default: Any) -> Any:
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise ValueError(f"option {name!r} must be True or False, not {value!r}")
    elif isinstance(default, int):
        if not isinstance(value, (bool, int)) and hasattr(value, "__index__"):
            value = operator.index(value)  # NumPy's integers
        if isinstance(value, bool) or not isinstance(value, int) or value < _LEAST.get(name, 0):
            raise ValueError(
                f"option {name!r} must be an integer of at least {_LEAST.get(name, 0)}, not {value!r}"
            )
    else:
        _choices(value)
    return value


def _choices(text: Any) -> tuple[str, dict[str, str]]:
    """Return the word of ``compute`` for operators in general, and the words for some kinds."""
    general, special = "auto", dict[str, str]()
    said = set[str]()
    for part in text.split(",") if isinstance(text, str) else [""]:
        kind, _, choice = (word.strip() for word in part.rpartition("="))
        known = kind in _KINDS if "=" in part else True
        if choice not in _COMPUTE or not known or kind in said:
            raise ValueError(
                f"option 'compute' must be one of {', '.join(map(repr, _COMPUTE))}, and may be followed by "
                f"words for {', '.join(_KINDS)}, once each, as in 'auto, attention=tvm'; not {text!r}"
            )
        said.add(kind)
        if kind:
            special[kind] = choice
        else:
            general = choice
    return general, special


def checked_config(config: StitchConfig | None) -> StitchConfig:
    """Return the given configuration, or the default one.

    Raises:
        TypeError: if it is neither a StitchConfig nor None.
    """
    if config is None:
        return StitchConfig()
    if not isinstance(config, StitchConfig):
        raise TypeError(f"config must be a StitchConfig, such as StitchConfig(strict=True), not {config!r}")
    return config


def configured(config: StitchConfig | None, options: Mapping[str, Any]) -> StitchConfig:
    """Return the given configuration, or the default one, with some options changed.

    Raises:
        TypeError: if it is neither a StitchConfig nor None.
        ValueError: for an unknown option or a bad value.
    """
    chosen = checked_config(config)
    return StitchConfig(**(chosen.to_dict() | dict(options))) if options else chosen
