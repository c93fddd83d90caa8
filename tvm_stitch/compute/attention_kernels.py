# SPDX-License-Identifier: Apache-2.0
"""Select this package's attention kernel for a target, and check the attention that it supports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from .. import compat
from ..compat import PrimFunc, Var
from ..config import StitchConfig
from ..device import DeviceModel, device_model
from ..graph.extent import Extent
from ..support.failures import Refusal
from ..target import capability_of
from .attention import Attention, with_heads_as_queries
from .cpu import attention as cpu_attention
from .cuda import attention as cuda_attention
from .cuda import attention_few
from .cuda.attention_library import LibraryAttention, library_attention
from .cuda.library import CUDNN_ATTENTION, why_not

if TYPE_CHECKING:
    from tvm.target import Target


class AttentionKernels(Protocol):
    """The attention kernels of a target."""

    @property
    def mixes(self) -> bool:
        """True if kernels read operands of several types."""

    def widens(self, queries: Extent) -> bool:
        """Return whether the kernel for so many queries reads operands of half types as float32."""

    def check(self, attention: Attention) -> None:
        """Raise a Refusal unless a kernel computes this attention, and faster than separate operators."""

    def kernel(self, attention: Attention, numbers: Sequence[Var]) -> PrimFunc:
        """Return the scheduled PrimFunc. Its parameters are the inputs, ``numbers`` and the result."""

    def library(self, attention: Attention) -> LibraryAttention | None:
        """Return the call of a library that computes this attention or runs the kernel, or None to call the kernel."""


def attention_kernels(target: Target, config: StitchConfig) -> AttentionKernels | None:
    """Return the kernels of a target, or None if it has none."""
    if target.kind.name == "cuda":
        return _Cuda(target, config, device_model(target, config))
    return _Cpu(target, config, device_model(target, config)) if target.kind.name == "llvm" else None


@dataclass(frozen=True)
class _Cuda:
    target: Target
    config: StitchConfig
    device: DeviceModel
    mixes: bool = False

    def widens(self, queries: Extent) -> bool:
        return self._has_few(queries)  # the kernel of more queries multiplies in the type of its operands

    def check(self, attention: Attention) -> None:
        _check_asked(self.config)
        if capability_of(self.target) < cuda_attention.FIRST_CAPABILITY:
            raise Refusal(f"our kernel needs compute capability {cuda_attention.FIRST_CAPABILITY / 10:.1f}")
        if self._is_few(attention):
            attention_few.check(attention, self.device)
            return
        if self._is_for_library(attention):
            attention_few.check(attention, self.device, is_fallback=True)
            return
        cuda_attention.check(attention, self.device.shared_per_block)
        if self.config.tf32 and attention.q.dtype == "float32":
            raise Refusal("products in TensorFloat-32 are faster than our kernel's, which is exact")

    def _has_few(self, queries: Extent) -> bool:
        """Return whether queries are so few that another kernel is for them."""
        return isinstance(queries, int) and queries < self.device.choices.attention_fewest_queries

    def _is_few(self, attention: Attention) -> bool:
        """Return whether the kernel of few queries is for an attention: always, or because the keys are many more."""
        return self._has_few(attention.queries) or attention_few.splits_keys(attention, self.device)

    def _is_for_library(self, attention: Attention) -> bool:
        """Return whether heads are so wide that a library alone is fast. Its fallback is the kernel of few queries."""
        return attention.size > cuda_attention.LARGEST_HEAD and self.library(attention) is not None

    def kernel(self, attention: Attention, numbers: Sequence[Var]) -> PrimFunc:
        if self._is_few(attention):
            return attention_few.cuda_attention_few(attention, numbers, self.device)
        if self._is_for_library(attention):
            return attention_few.cuda_attention_few(attention, numbers, self.device, is_fallback=True)
        return cuda_attention.cuda_attention(attention, numbers, self.device)

    def library(self, attention: Attention) -> LibraryAttention | None:
        if self._is_few(attention) or self.config.compute_of("attention") == "templates":
            return None
        try:
            call = library_attention(attention, capability_of(self.target), self.device.choices)
        except Refusal:
            return None
        return call if why_not(CUDNN_ATTENTION, self.config) is None else None


@dataclass(frozen=True)
class _Cpu:
    target: Target
    config: StitchConfig
    device: DeviceModel
    mixes: bool = compat.COMPUTES_BFLOAT16

    def widens(self, queries: Extent) -> bool:
        return compat.COMPUTES_BFLOAT16

    def check(self, attention: Attention) -> None:
        _check_asked(self.config)
        cpu_attention.check(attention, self.device.choices)
        _check_queries(with_heads_as_queries(attention), self.device.choices.cpu_attention_fewest_queries)

    def kernel(self, attention: Attention, numbers: Sequence[Var]) -> PrimFunc:
        attention = with_heads_as_queries(attention)
        return cpu_attention.cpu_attention(attention, numbers, self.target, self.device.choices)

    def library(self, attention: Attention) -> LibraryAttention | None:
        return None


def _check_asked(config: StitchConfig) -> None:
    if "attention" in config.of_tvm:
        raise Refusal("asked for")


def _check_queries(attention: Attention, fewest: int) -> None:
    if isinstance(attention.queries, int) and attention.queries < fewest:
        raise Refusal(f"{attention.queries} queries are too few for our kernel")
