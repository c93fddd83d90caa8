# SPDX-License-Identifier: Apache-2.0
"""The named workloads for other compilers: each written once, for PyTorch and for JAX.

Every function computes the case of its name in ``tvm_stitch.testing.workloads.cases``, with the same arguments.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np


class Backend(Protocol):
    """Functions of an array library that the workloads below use."""

    def exp(self, x: Any) -> Any: ...
    def log(self, x: Any) -> Any: ...
    def erf(self, x: Any) -> Any: ...
    def tanh(self, x: Any) -> Any: ...
    def sigmoid(self, x: Any) -> Any: ...
    def rsqrt(self, x: Any) -> Any: ...
    def round(self, x: Any) -> Any: ...
    def abs(self, x: Any) -> Any: ...
    def clip(self, x: Any, low: float, high: float) -> Any: ...
    def maximum(self, x: Any, least: float) -> Any: ...
    def minimum(self, x: Any, most: float) -> Any: ...
    def max(self, x: Any, axes: tuple[int, ...] = (-1,)) -> Any: ...
    def sum(self, x: Any, axes: tuple[int, ...] = (-1,), keepdims: bool = True) -> Any: ...
    def mean(self, x: Any, axes: tuple[int, ...] = (-1,)) -> Any: ...
    def var_mean(self, x: Any, axes: tuple[int, ...] = (-1,)) -> tuple[Any, Any]: ...
    def sqrt(self, x: Any) -> Any: ...
    def broadcast_to(self, x: Any, shape: tuple[int, ...]) -> Any: ...
    def cross_entropy(self, logits: Any, targets: Any) -> Any: ...
    def cast(self, x: Any, dtype: str) -> Any: ...


class TorchBackend:
    """PyTorch."""

    def __init__(self) -> None:
        import torch

        self.exp, self.log, self.erf, self.tanh = torch.exp, torch.log, torch.erf, torch.tanh
        self.sigmoid, self.rsqrt, self.round, self.abs = torch.sigmoid, torch.rsqrt, torch.round, torch.abs
        self.sqrt, self.broadcast_to = torch.sqrt, torch.broadcast_to
        self._torch = torch

    def clip(self, x: Any, low: float, high: float) -> Any:
        return x.clamp(low, high)

    def maximum(self, x: Any, least: float) -> Any:
        return x.clamp(min=least)

    def minimum(self, x: Any, most: float) -> Any:
        return x.clamp(max=most)

    def max(self, x: Any, axes: tuple[int, ...] = (-1,)) -> Any:
        return x.amax(dim=axes, keepdim=True)

    def sum(self, x: Any, axes: tuple[int, ...] = (-1,), keepdims: bool = True) -> Any:
        return x.sum(dim=axes, keepdim=keepdims)

    def mean(self, x: Any, axes: tuple[int, ...] = (-1,)) -> Any:
        return x.mean(dim=axes, keepdim=True)

    def var_mean(self, x: Any, axes: tuple[int, ...] = (-1,)) -> tuple[Any, Any]:
        """Biased variance and mean, the form that PyTorch's own norms take."""
        return self._torch.var_mean(x, dim=axes, correction=0, keepdim=True)

    def cross_entropy(self, logits: Any, targets: Any) -> Any:
        return self._torch.nn.functional.cross_entropy(logits, targets.long())

    def cast(self, x: Any, dtype: str) -> Any:
        return x.to(getattr(self._torch, dtype))


class JaxBackend:
    """JAX, compiled by XLA."""

    def __init__(self) -> None:
        jax, jnp = importlib.import_module("jax"), importlib.import_module("jax.numpy")
        self.exp, self.log, self.erf, self.tanh = jnp.exp, jnp.log, jax.scipy.special.erf, jnp.tanh
        self.sigmoid, self.rsqrt, self.round, self.abs = jax.nn.sigmoid, jax.lax.rsqrt, jnp.round, jnp.abs
        self.clip, self.maximum, self.minimum, self.sqrt = jnp.clip, jnp.maximum, jnp.minimum, jnp.sqrt
        self.broadcast_to = jnp.broadcast_to
        self._jax, self._jnp = jax, jnp

    def max(self, x: Any, axes: tuple[int, ...] = (-1,)) -> Any:
        return self._jnp.max(x, axis=axes, keepdims=True)

    def sum(self, x: Any, axes: tuple[int, ...] = (-1,), keepdims: bool = True) -> Any:
        return self._jnp.sum(x, axis=axes, keepdims=keepdims)

    def mean(self, x: Any, axes: tuple[int, ...] = (-1,)) -> Any:
        return self._jnp.mean(x, axis=axes, keepdims=True)

    def var_mean(self, x: Any, axes: tuple[int, ...] = (-1,)) -> tuple[Any, Any]:
        """Biased variance and mean."""
        return self._jnp.var(x, axis=axes, keepdims=True), self.mean(x, axes)

    def cross_entropy(self, logits: Any, targets: Any) -> Any:
        log_probability = self._jax.nn.log_softmax(logits, axis=-1)
        return -self._jnp.take_along_axis(log_probability, targets[:, None], axis=1).mean()

    def cast(self, x: Any, dtype: str) -> Any:
        return x.astype(dtype)


def _softmax(b: Backend, x: Any) -> Any:
    exponential = b.exp(x - b.max(x))
    return exponential / b.sum(exponential)


def _normalize(b: Backend, x: Any, axes: tuple[int, ...] = (-1,)) -> Any:
    centred = x - b.mean(x, axes)
    return centred * b.rsqrt(b.mean(centred * centred, axes) + 1e-5)


def _gelu(b: Backend, x: Any) -> Any:
    return x * 0.5 * (b.erf(x * math.sqrt(0.5)) + 1.0)


def softmax(b: Backend, sizes: Mapping[str, int], x: Any) -> Any:
    return _softmax(b, x)


def log_softmax(b: Backend, sizes: Mapping[str, int], x: Any) -> Any:
    shifted = x - b.max(x)
    return shifted - b.log(b.sum(b.exp(shifted)))


def attention_softmax(b: Backend, sizes: Mapping[str, int], scores: Any, mask: Any, dropout: Any) -> Any:
    return _softmax(b, scores * 0.125 + mask) * dropout


def layer_norm(b: Backend, sizes: Mapping[str, int], x: Any, gamma: Any, beta: Any) -> Any:
    return _normalize(b, x) * gamma + beta


def add_layer_norm_gelu(
    b: Backend, sizes: Mapping[str, int], x: Any, residual: Any, bias: Any, gamma: Any, beta: Any
) -> Any:
    first = x + residual
    second = first + bias
    return first, second, _gelu(b, _normalize(b, second) * gamma + beta)


def softmax_add_layer_norm_gelu(
    b: Backend, sizes: Mapping[str, int], x: Any, residual: Any, gamma: Any, beta: Any
) -> Any:
    return _gelu(b, _normalize(b, _softmax(b, x) + residual) * gamma + beta)


def group_norm_silu(b: Backend, sizes: Mapping[str, int], x: Any, gamma: Any, beta: Any) -> Any:
    groups, per_group = sizes["groups"], sizes["channels"] // sizes["groups"]
    normal = _normalize(b, x.reshape(sizes["batch"], groups, per_group, sizes["pixels"]), (2, 3))
    vector = (1, groups, per_group, 1)
    y = (normal * gamma.reshape(vector) + beta.reshape(vector)).reshape(x.shape)
    return y * b.sigmoid(y)


def rms_norm_quantize(b: Backend, sizes: Mapping[str, int], x: Any, residual: Any, weight: Any) -> Any:
    added = x + residual
    wide = b.cast(added, "float32")
    normal = b.cast(wide * b.rsqrt(b.mean(wide * wide) + 1e-6), "bfloat16") * weight
    scale = b.maximum(b.cast(b.max(b.abs(normal)), "float32") * (1 / 127), 1e-8)
    quotient = normal / b.cast(scale, "bfloat16")
    return added, b.cast(b.clip(b.round(quotient), -127.0, 127.0), "int8"), scale


def lstm_cell(b: Backend, sizes: Mapping[str, int], gates: Any, cell: Any) -> Any:
    hidden = sizes["hidden"]
    i, f, g, o = (gates[:, place * hidden : (place + 1) * hidden] for place in range(4))
    new_cell = b.sigmoid(f) * cell + b.sigmoid(i) * b.tanh(g)
    return b.sigmoid(o) * b.tanh(new_cell), new_cell


def swiglu(b: Backend, sizes: Mapping[str, int], x: Any) -> Any:
    gate, value = x[:, : sizes["hidden"]], x[:, sizes["hidden"] :]
    return gate * b.sigmoid(gate) * value


def power_broadcast_add(b: Backend, sizes: Mapping[str, int], x: Any, y: Any) -> Any:
    return x**2.5 + y


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        softmax,
        log_softmax,
        attention_softmax,
        layer_norm,
        add_layer_norm_gelu,
        softmax_add_layer_norm_gelu,
        group_norm_silu,
        rms_norm_quantize,
        lstm_cell,
        swiglu,
        power_broadcast_add,
    )
}


def torch_function(name: str, sizes: Mapping[str, int]) -> Callable[..., Any]:
    """Return the case ``name`` as a PyTorch function of tensors.

    Raises
    ------
    KeyError : a case that is not written here.
    """
    if name == "encoder_layer":
        from tvm_stitch.testing.workloads.encoder import encoder_layer

        keys = ("batch", "sequence", "hidden", "heads", "ffn")
        batch, sequence, hidden, heads, ffn = (sizes[key] for key in keys)
        return encoder_layer(batch, sequence, hidden, heads, ffn)[1]
    function, backend = FUNCTIONS[name], TorchBackend()
    return lambda *args: function(backend, sizes, *args)


def jax_function(name: str, sizes: Mapping[str, int]) -> Callable[..., Any]:
    """Return the case ``name`` as a JAX function of arrays, not yet jitted. KeyError if it is not written here."""
    function, backend = FUNCTIONS[name], JaxBackend()
    return lambda *args: function(backend, sizes, *args)


def to_torch(array: np.ndarray, device: str = "cpu") -> Any:
    """Return a torch tensor with the array's values, also for bfloat16 of ml_dtypes."""
    import torch

    if str(array.dtype) == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(device)
    return torch.from_numpy(array).to(device)


def from_torch(tensor: Any) -> np.ndarray:
    """Invert :func:`to_torch`."""
    import ml_dtypes
    import torch

    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()
