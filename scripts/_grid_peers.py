# SPDX-License-Identifier: Apache-2.0
"""The workloads of ``tvm_stitch.testing.workloads.grid_cases`` for PyTorch and JAX, each in its best form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from _peers import Backend, JaxBackend, TorchBackend, group_norm_silu

from tvm_stitch.testing.workloads.grid_cases import ADAM, EPSILON, MOMENTUM


def layer_norm_backward(b: Backend, sizes: Mapping[str, int], x: Any, dy: Any, gamma: Any) -> Any:
    variance, mean = b.var_mean(x)
    rstd = b.rsqrt(variance + EPSILON)
    normal = (x - mean) * rstd
    scaled = dy * gamma
    dx = (scaled - b.mean(scaled) - normal * b.mean(scaled * normal)) * rstd
    return dx, b.sum(dy * normal, (0,), False), b.sum(dy, (0,), False)


def _batch_norm(
    b: Backend, axes: tuple[int, ...], x: Any, gamma: Any, beta: Any, running_mean: Any, running_var: Any
) -> Any:
    variance, mean = b.var_mean(x, axes)
    normal = (x - mean) * b.rsqrt(variance + EPSILON)
    y = normal * gamma.reshape(mean.shape) + beta.reshape(mean.shape)
    new_mean = (1 - MOMENTUM) * running_mean + MOMENTUM * mean.reshape(running_mean.shape)
    new_var = (1 - MOMENTUM) * running_var + MOMENTUM * variance.reshape(running_var.shape)
    return y, new_mean, new_var


def batch_norm_training(b: Backend, sizes: Mapping[str, int], *args: Any) -> Any:
    return _batch_norm(b, (0,), *args)


def batch_norm_training_nchw(b: Backend, sizes: Mapping[str, int], *args: Any) -> Any:
    return _batch_norm(b, (0, 2, 3), *args)


def cross_entropy(b: Backend, sizes: Mapping[str, int], logits: Any, targets: Any) -> Any:
    return b.cross_entropy(logits, targets)


def row_sum(b: Backend, sizes: Mapping[str, int], x: Any) -> Any:
    return b.sum(x, (1,), False)


def column_sum(b: Backend, sizes: Mapping[str, int], x: Any) -> Any:
    return b.sum(x, (0,), False)


def clip_adam(b: Backend, sizes: Mapping[str, int], *args: Any) -> Any:
    count = sizes["tensors"]
    gradients, firsts, seconds, parameters = (args[at * count : (at + 1) * count] for at in range(4))
    norm = b.sqrt(sum((g * g).sum() for g in gradients))
    scale = b.minimum(ADAM.max_norm(sizes["elements"]) / (norm + 1e-6), 1.0)
    clipped = [g * scale for g in gradients]
    new_firsts = [ADAM.beta1 * m + (1 - ADAM.beta1) * g for m, g in zip(firsts, clipped, strict=True)]
    new_seconds = [ADAM.beta2 * v + (1 - ADAM.beta2) * g * g for v, g in zip(seconds, clipped, strict=True)]
    new = [
        p - ADAM.rate * ADAM.correction1 * m / (b.sqrt(v * ADAM.correction2) + ADAM.epsilon)
        for p, m, v in zip(parameters, new_firsts, new_seconds, strict=True)
    ]
    return (*new_firsts, *new_seconds, *new)


def clip_adam_tensors_torch(b: Backend, sizes: Mapping[str, int], *args: Any) -> Any:
    """Many tensors at once, as ``clip_grad_norm_`` and ``Adam(foreach=True)`` do: Inductor makes few kernels of it."""
    import torch

    count = sizes["tensors"]
    gradients, firsts, seconds, parameters = (list(args[at * count : (at + 1) * count]) for at in range(4))
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    scale = (ADAM.max_norm(sizes["elements"]) / (norm + 1e-6)).clamp(max=1.0)
    clipped = torch._foreach_mul(gradients, scale)
    firsts = torch._foreach_add(torch._foreach_mul(firsts, ADAM.beta1), clipped, alpha=1 - ADAM.beta1)
    kept = torch._foreach_mul(seconds, ADAM.beta2)
    seconds = torch._foreach_addcmul(kept, clipped, clipped, 1 - ADAM.beta2)
    root = torch._foreach_sqrt(torch._foreach_mul(seconds, ADAM.correction2))
    root = torch._foreach_add(root, ADAM.epsilon)
    new = torch._foreach_addcdiv(parameters, firsts, root, -ADAM.rate * ADAM.correction1)
    return (*firsts, *seconds, *new)


def deviation_sum(b: Backend, sizes: Mapping[str, int], x: Any) -> Any:
    centred = x - x.mean()
    return (centred * centred).sum()


def standardize_by_max(b: Backend, sizes: Mapping[str, int], x: Any) -> Any:
    variance, mean = b.var_mean(x, (0, 1))
    normal = (x - mean) * b.rsqrt(variance + EPSILON)
    return normal / b.max(b.abs(normal), (0, 1))


def figure7(b: Backend, sizes: Mapping[str, int], p1: Any, p2: Any, p3: Any) -> Any:
    power = (b.sum(p1 + p2[:, None], (1,), False) / p2) ** 0.7
    return b.broadcast_to(power, p3.shape) * b.broadcast_to(b.sum(p3 / power, (0,)), p3.shape)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{
        function.__name__: function
        for function in (
            layer_norm_backward,
            batch_norm_training,
            batch_norm_training_nchw,
            cross_entropy,
            row_sum,
            column_sum,
            clip_adam,
            deviation_sum,
            standardize_by_max,
            figure7,
            group_norm_silu,
        )
    },
    "clip_adam_tensors": clip_adam,
}
FOR_TORCH: Mapping[str, Callable[..., Any]] = {**FUNCTIONS, "clip_adam_tensors": clip_adam_tensors_torch}


def torch_function(name: str, sizes: Mapping[str, int]) -> Callable[..., Any]:
    """Return the case ``name`` as a PyTorch function of tensors. KeyError if it is not written here."""
    function, backend = FOR_TORCH[name], TorchBackend()
    return lambda *args: function(backend, sizes, *args)


def jax_function(name: str, sizes: Mapping[str, int]) -> Callable[..., Any]:
    """Return the case ``name`` as a JAX function of arrays, not yet jitted. KeyError if it is not written here."""
    function, backend = FUNCTIONS[name], JaxBackend()
    return lambda *args: function(backend, sizes, *args)
