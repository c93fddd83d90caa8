# SPDX-License-Identifier: Apache-2.0
"""Named workloads that do not fit one row domain: column and full reductions, and values exchanged between blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .case import place_of
from .cases import group_norm_silu
from .grid_case import NORMAL, POSITIVE, Domain, GridCase, as_grid_case, grid_case_of
from .specs import Spec

EPSILON = 1e-5
"""The number added to variances."""
MOMENTUM = 0.1
"""Weight of the batch in batch norm's running statistics."""


@dataclass(frozen=True)
class Adam:
    """Constants of the optimizer step: rates, and the number of the step, for the bias corrections."""

    rate: float = 0.05
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    step: int = 3

    @property
    def correction1(self) -> float:
        """Return the factor of the first moment: 1 / (1 - beta1 ** step)."""
        return 1 / (1 - self.beta1**self.step)

    @property
    def correction2(self) -> float:
        """Return the factor of the second moment: 1 / (1 - beta2 ** step)."""
        return 1 / (1 - self.beta2**self.step)

    @staticmethod
    def max_norm(elements: int) -> float:
        """Return half of the norm of ``elements`` standard normal gradients, so that clipping takes place."""
        return 0.5 * math.sqrt(elements)


ADAM = Adam()


def layer_norm_backward(rows: int, columns: int) -> GridCase:
    """Make the case of layer norm's gradients (dx, dgamma, dbeta) from x, dy <rows, columns> and gamma.

    The statistics are computed again.
    """
    shape, vector = (rows, columns), (columns,)

    def body(ops: Any, x: Any, dy: Any, gamma: Any) -> list[Any]:
        def mean(value: Any) -> Any:
            return ops.mean(value, axis=-1, keepdims=True)

        centred = ops.subtract(x, mean(x))
        variance = mean(ops.multiply(centred, centred))
        rstd = ops.rsqrt(ops.add(variance, ops.const(EPSILON, "float32")))
        normal = ops.multiply(centred, rstd)
        scaled = ops.multiply(dy, gamma)
        along = ops.multiply(normal, mean(ops.multiply(scaled, normal)))
        inner = ops.subtract(ops.subtract(scaled, mean(scaled)), along)
        dgamma = ops.sum(ops.multiply(dy, normal), axis=0)
        return [ops.multiply(inner, rstd), dgamma, ops.sum(dy, axis=0)]

    return grid_case_of(
        "layer_norm_backward",
        [(Spec("x", shape, "float32"), NORMAL), (Spec("dy", shape, "float32"), NORMAL)]
        + [(Spec("gamma", vector, "float32"), NORMAL)],
        [
            Spec("dx", shape, "float32"),
            Spec("dgamma", vector, "float32"),
            Spec("dbeta", vector, "float32"),
        ],
        body,
        sizes={"rows": rows, "columns": columns},
        stock_kernels=10,
        longest=rows,
    )


def batch_norm_training(rows: int, channels: int) -> GridCase:
    """Make the case of batch norm of <rows, channels> by the batch's statistics.

    The results are (y, new running mean, new running variance).

    The running variance takes the biased variance, as Relax does.
    """
    shape, vector = (rows, channels), (channels,)

    def body(ops: Any, x: Any, gamma: Any, beta: Any, mean: Any, var: Any) -> list[Any]:
        def running(old: Any, new: Any) -> Any:
            kept = ops.multiply(old, ops.const(1 - MOMENTUM, "float32"))
            return ops.add(kept, ops.multiply(new, ops.const(MOMENTUM, "float32")))

        batch_mean = ops.mean(x, axis=0)
        centred = ops.subtract(x, batch_mean)
        variance = ops.mean(ops.multiply(centred, centred), axis=0)
        scale = ops.rsqrt(ops.add(variance, ops.const(EPSILON, "float32")))
        scaled = ops.multiply(ops.multiply(centred, scale), gamma)
        return [ops.add(scaled, beta), running(mean, batch_mean), running(var, variance)]

    return grid_case_of(
        "batch_norm_training",
        _batch_norm_arguments(shape, channels),
        _batch_norm_results(shape, vector),
        body,
        sizes={"rows": rows, "channels": channels},
        stock_kernels=7,
    )


def batch_norm_training_nchw(batch: int, channels: int, height: int, width: int) -> GridCase:
    """Make the case of Relax's own batch norm of <batch, channels, height, width>, over all axes but the channels."""
    shape, vector = (batch, channels, height, width), (channels,)

    def body(ops: Any, *args: Any) -> list[Any]:
        done = ops.batch_norm_training(*args, axis=1, epsilon=EPSILON, momentum=MOMENTUM)
        return ops.parts(done, 3)

    return grid_case_of(
        "batch_norm_training_nchw",
        _batch_norm_arguments(shape, channels),
        _batch_norm_results(shape, vector),
        body,
        sizes={"batch": batch, "channels": channels, "height": height, "width": width},
        stock_kernels=1,
    )


def _batch_norm_arguments(shape: tuple[int, ...], channels: int) -> list[tuple[Spec, Domain]]:
    drawn = {"gamma": NORMAL, "beta": NORMAL, "running_mean": NORMAL, "running_var": POSITIVE}
    vectors = [(Spec(name, (channels,), "float32"), domain) for name, domain in drawn.items()]
    return [(Spec("x", shape, "float32"), NORMAL), *vectors]


def _batch_norm_results(shape: tuple[int, ...], vector: tuple[int, ...]) -> list[Spec]:
    names = ("new_running_mean", "new_running_var")
    return [Spec("y", shape, "float32"), *(Spec(name, vector, "float32") for name in names)]


def cross_entropy(rows: int, classes: int) -> GridCase:
    """Make the case of cross entropy: one scalar.

    It is the log-softmax of <rows, classes> and the mean negative log-likelihood of int32 targets <rows>.
    """

    def body(ops: Any, logits: Any, targets: Any) -> list[Any]:
        return [ops.nll_loss(ops.log_softmax(logits, axis=-1), targets, reduction="mean")]

    return grid_case_of(
        "cross_entropy",
        [
            (Spec("logits", (rows, classes), "float32"), NORMAL),
            (Spec("targets", (rows,), "int32"), Domain("integer", 0, classes)),
        ],
        [Spec("loss", (), "float32")],
        body,
        sizes={"rows": rows, "classes": classes},
        stock_kernels=2,
    )


def row_sum(rows: int, columns: int) -> GridCase:
    """Make the case of <rows, columns> summed over the columns."""

    def body(ops: Any, x: Any) -> list[Any]:
        return [ops.sum(x, axis=1)]

    return grid_case_of(
        "row_sum",
        [(Spec("x", (rows, columns), "float32"), NORMAL)],
        [Spec("y", (rows,), "float32")],
        body,
        sizes={"rows": rows, "columns": columns},
        stock_kernels=1,
        longest=columns,
    )


def column_sum(rows: int, columns: int) -> GridCase:
    """Make the case of <rows, columns> summed over the rows."""

    def body(ops: Any, x: Any) -> list[Any]:
        return [ops.sum(x, axis=0)]

    return grid_case_of(
        "column_sum",
        [(Spec("x", (rows, columns), "float32"), NORMAL)],
        [Spec("y", (columns,), "float32")],
        body,
        sizes={"rows": rows, "columns": columns},
        stock_kernels=1,
        longest=rows,
    )


def clip_adam(shapes: Sequence[tuple[int, ...]], adam: Adam = ADAM) -> GridCase:
    """Make the case of gradients clipped by their global norm, then one Adam step.

    ``main`` takes all gradients, then first moments, second moments and parameters, one of each a shape. It returns
    the new first moments, second moments and parameters. Raises ValueError without shapes.
    """
    if not shapes:
        raise ValueError("clip_adam needs at least one shape")
    elements = sum(math.prod(shape) for shape in shapes)
    count = len(shapes)

    def body(ops: Any, *args: Any) -> list[Any]:
        gradients, firsts, seconds, parameters = (args[at * count : (at + 1) * count] for at in range(4))
        squares = [ops.sum(ops.multiply(g, g)) for g in gradients]
        total = squares[0]
        for square in squares[1:]:
            total = ops.add(total, square)
        norm = ops.add(ops.sqrt(total), ops.const(1e-6, "float32"))
        scale = ops.minimum(
            ops.divide(ops.const(adam.max_norm(elements), "float32"), norm), ops.const(1.0, "float32")
        )

        def blend(old: Any, new: Any, kept: float) -> Any:
            return ops.add(
                ops.multiply(old, ops.const(kept, "float32")),
                ops.multiply(new, ops.const(1 - kept, "float32")),
            )

        clipped = [ops.multiply(g, scale) for g in gradients]
        new_firsts = [blend(m, g, adam.beta1) for m, g in zip(firsts, clipped)]
        new_seconds = [
            blend(v, ops.multiply(g, g), adam.beta2) for v, g in zip(seconds, clipped, strict=True)
        ]
        new_parameters = []
        for p, m, v in zip(parameters, new_firsts, new_seconds, strict=True):
            root = ops.sqrt(ops.multiply(v, ops.const(adam.correction2, "float32")))
            step = ops.divide(m, ops.add(root, ops.const(adam.epsilon, "float32")))
            new_parameters.append(
                ops.subtract(p, ops.multiply(step, ops.const(adam.rate * adam.correction1, "float32")))
            )
        return [*new_firsts, *new_seconds, *new_parameters]

    kinds = {"gradient": NORMAL, "first": NORMAL, "second": POSITIVE, "parameter": NORMAL}

    def specs(name: str) -> list[Spec]:
        return [Spec(f"{name}{place}", shape, "float32") for place, shape in enumerate(shapes)]

    return grid_case_of(
        "clip_adam" if count == 1 else "clip_adam_tensors",
        [(spec, domain) for name, domain in kinds.items() for spec in specs(name)],
        [spec for name in ("new_first", "new_second", "new_parameter") for spec in specs(name)],
        body,
        sizes={"tensors": count, "elements": elements},
        stock_kernels=5 if count == 1 else 5 * count + 1,
    )


def deviation_sum(rows: int, columns: int) -> GridCase:
    """Make the case of two chained full reductions: the sum of (x - mean(x)) ** 2 over all of <rows, columns>."""

    def body(ops: Any, x: Any) -> list[Any]:
        centred = ops.subtract(x, ops.mean(x))
        return [ops.sum(ops.multiply(centred, centred))]

    return grid_case_of(
        "deviation_sum",
        [(Spec("x", (rows, columns), "float32"), Domain("normal", 0.5, 1.0))],
        [Spec("y", (), "float32")],
        body,
        sizes={"rows": rows, "columns": columns},
        stock_kernels=2,
        longest=rows * columns,
    )


def standardize_by_max(rows: int, columns: int) -> GridCase:
    """Make the case of three chained full reductions.

    It computes x less its mean, divided by its standard deviation, then by the largest magnitude.
    """

    def body(ops: Any, x: Any) -> list[Any]:
        centred = ops.subtract(x, ops.mean(x))
        variance = ops.mean(ops.multiply(centred, centred))
        normal = ops.multiply(centred, ops.rsqrt(ops.add(variance, ops.const(EPSILON, "float32"))))
        return [ops.divide(normal, ops.max(ops.abs(normal)))]

    shape = (rows, columns)
    return grid_case_of(
        "standardize_by_max",
        [(Spec("x", shape, "float32"), Domain("normal", 0.5, 1.0))],
        [Spec("y", shape, "float32")],
        body,
        sizes={"rows": rows, "columns": columns},
        stock_kernels=5,
    )


def figure7(rows: int, columns: int, others: int) -> GridCase:
    """Make the case of AStitch's Fig. 7, in shapes for which the locality check agrees with the figure.

    The arguments are p1 <rows, columns>, p2 <rows> and p3 <others, rows>. A block computes and reads ``reduce.1`` for
    its own rows, so it remains in a block (Regional). Other blocks read ``power.1`` <rows> along the other axis, and
    ``reduce.2`` <rows> sums over values of all blocks. Both are Global. ``multiply.1`` is an output (Independent).
    """
    wide, crossed = (rows, columns), (others, rows)

    def body(ops: Any, p1: Any, p2: Any, p3: Any) -> list[Any]:
        broadcast1 = ops.broadcast_to(ops.reshape(p2, (rows, 1)), wide)
        reduce1 = ops.sum(ops.add(p1, broadcast1), axis=1)
        power1 = ops.power(ops.divide(reduce1, p2), ops.const(0.7, "float32"))
        broadcast2 = ops.broadcast_to(power1, crossed)
        reduce2 = ops.sum(ops.divide(p3, broadcast2), axis=0)
        broadcast3 = ops.broadcast_to(reduce2, crossed)
        return [ops.multiply(broadcast2, broadcast3)]

    return grid_case_of(
        "figure7",
        [
            (Spec("p1", wide, "float32"), POSITIVE),
            (Spec("p2", (rows,), "float32"), POSITIVE),
            (Spec("p3", crossed, "float32"), POSITIVE),
        ],
        [Spec("y", crossed, "float32")],
        body,
        sizes={"rows": rows, "columns": columns, "others": others},
        stock_kernels=4,
    )


def group_norm(batch: int, channels: int, groups: int, pixels: int) -> GridCase:
    """Make ``cases.group_norm_silu`` with rows of channels / groups x pixels elements, too many for a few warps."""
    return as_grid_case(group_norm_silu(batch, channels, groups, pixels), [NORMAL] * 3)


#: The tensors of a small BERT: matrices, vectors, and a few numbers.
_TENSORS = (
    [(30522, 768), (512, 768), (2, 768), (2,), (1001,)]
    + [(768, 768)] * 4
    + [(768, 3072), (3072, 768)] * 2
    + [(768,)] * 5
    + [(3072,)] * 2
)
_SMALL_TENSORS = [(31, 8), (257,), (1,), (5, 3, 7), (64,)]


SCALES = ("test", "blocks", "gpu")
_ARGUMENTS: Mapping[Callable[..., GridCase], Sequence[Sequence[tuple[Any, ...]]]] = {
    layer_norm_backward: [[(37, 96)], [(3001, 96)], [(65536, 768), (4096, 768)]],
    batch_norm_training: [[(67, 24)], [(2999, 24)], [(131072, 256), (8192, 256)]],
    batch_norm_training_nchw: [[(3, 5, 6, 7)], [(8, 16, 28, 28)], [(32, 64, 56, 56)]],
    cross_entropy: [[(6, 301)], [(64, 3001)], [(64, 30000)]],
    row_sum: [[(301, 32)], [(7001, 32)], [(750000, 32)]],
    column_sum: [[(203, 40)], [(5003, 40)], [(262144, 256)]],
    clip_adam: [
        [([(1237,)],), (_SMALL_TENSORS,)],
        [([(300_001,)],), (_SMALL_TENSORS,)],
        [([(100_000_000,)],), (_TENSORS,)],
    ],
    deviation_sum: [[(23, 64)], [(257, 640)], [(4096, 4096)]],
    standardize_by_max: [[(19, 128)], [(129, 1280)], [(4096, 4096)]],
    figure7: [[(48, 33, 21)], [(480, 130, 330)], [(4096, 1024, 8192)]],
    group_norm: [[(2, 12, 4, 35)], [(2, 12, 4, 5000)], [(32, 320, 32, 4096)]],
}
"""The sizes of each workload, one or several for each of the ``SCALES``."""


def grid_cases(scale: str = "test") -> list[GridCase]:
    """Return every workload at the sizes of ``scale``, some in several sizes.

    ``"test"``: small and odd, a few thousand elements. ``"blocks"``: odd as well, enough work for many blocks, small
    enough for sanitizers. ``"gpu"``: a few to 2,800 MB, the shapes that the kernel tables show.

    Raises
    ------
    ValueError : unknown scale.
    """
    at = place_of(scale, SCALES)
    return [make(*arguments) for make, scales in _ARGUMENTS.items() for arguments in scales[at]]
