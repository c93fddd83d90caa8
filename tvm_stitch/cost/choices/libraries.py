# SPDX-License-Identifier: Apache-2.0
"""Constants of what libraries and templates get: workspaces, shapes that they are fast for, and layouts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LibraryChoices:
    """Constants of what libraries and templates get: workspaces, shapes that they are fast for, and layouts."""

    convolution_workspace_bytes: int = 64 << 20
    """Device memory that a convolution may use beside its operands. It is planned with all other storage of a function,
    so that convolutions in a row share it."""
    transformed_times: float = 2.5
    """Times its operands' bytes that a weight's gradient may use beside them, where cuDNN transforms them: tiles of 4 x
    4 become such of 6 x 6."""
    fewest_channels: int = 4
    """Channels that images of half types get at least, with zeros, where channels are innermost: cuDNN's kernels for
    three take 1.7 times as long as those for four."""
    matmul_workspace_bytes: tuple[tuple[int, int], ...] = ((0, 4 << 20), (90, 32 << 20))
    """Device memory that a product may use beside its operands, by ten times the least compute capability: NVIDIA's
    recommendation. It is planned with all other storage of a function, so that products in a row share it."""
    fewest_patch_results: int = 48
    """Channels of the result with which a matrix product saves the time of a kernel that copies the patches: 8 bytes of
    an element at 4 TB/s, and 50 TFLOP/s in place of 25."""
    most_patch_channels_on_tensor_cores: int = 4
    """Channels of data with which such a kernel saves time where tensor cores compute convolutions: with more, cuDNN
    needs no copy of data that has channels last, as results of other convolutions do."""
    most_phase_waste: float = 4.0
    """How many times as many multiplications a transposed convolution's phases may have: where the stride does not
    divide the window, phases get zeros to be of one size."""
    broadcast_permutation_share: float = 1 / 64
    """The cost of a permutation of a broadcast operand, relative to one that is not broadcast, where extents are
    symbolic. Nothing was measured."""
    product_permutation_cost: float = 3.0
    """The cost of a permutation of a product's result, relative to others: in its own order what follows may be
    computed in the product's kernel. Nothing was measured."""
    few_places: int = 64
    large_weight: int = 1 << 20
    """Places of an image's windows, and elements of a weight that no second-level cache holds: of fewer with a larger
    one TVM's convolution is faster on a CPU (7x7 places, 512 channels: 60 against 45 GFLOP/s; 14x14, 256 channels: 75
    against 94)."""
