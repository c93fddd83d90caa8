# SPDX-License-Identifier: Apache-2.0
"""Constants of libraries and templates: workspaces, shapes that they are fast for, and layouts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LibraryChoices:
    """Constants of libraries and templates: workspaces, shapes that they are fast for, and layouts."""

    convolution_workspace_bytes: int = 64 << 20
    """Device memory that a convolution may use in addition to its operands. It is planned with all other storage of a
    function, so that consecutive convolutions share it."""
    transformed_times: float = 2.5
    """Workspace of a weight's gradient, relative to the bytes of its operands, if cuDNN transforms these. Tiles of 4
    x 4 become tiles of 6 x 6."""
    fewest_channels: int = 4
    """Fewest channels of images of half types whose channels are innermost. Missing channels are zeros. cuDNN's
    kernels for three channels take 1.7 times as long as those for four."""
    fused_channels: int = 8
    """Divisor of the channels of data and result with which cuDNN also computes a bias, a residual and ReLU. Its
    kernels load 8 elements at once. Other channels were not measured."""
    matmul_workspace_bytes: tuple[tuple[int, int], ...] = ((0, 4 << 20), (90, 32 << 20))
    """Device memory that a product may use in addition to its operands, by ten times the least compute capability.
    The figures are NVIDIA's recommendation. The memory is planned with all other storage of a function, so that
    consecutive products share it."""
    fewest_patch_results: int = 48
    """Fewest channels of the result for which a matrix product saves more time than the copy of its patches takes.
    The copy moves 8 bytes of an element at 4 TB/s. The product runs at 50 TFLOP/s in place of 25."""
    most_patch_channels_on_tensor_cores: int = 4
    """Most channels of data with which such a kernel saves time if tensor cores compute convolutions. With more,
    cuDNN needs no copy of data that has channels last, as the results of other convolutions do."""
    aligned_channels: int = 8
    """Channels of a half type that take 16 bytes. Tensor cores read rows more slowly that begin elsewhere."""
    divided_product_reads: float = 2.0
    """Most elements of data that products of some channels read again, for each element of a slice that is not copied.
    A copy reads and writes each. 0 divides no product. Not measured."""
    scaled_weight_error: float = 2.0**-9
    """Most error that a scale may cause in a channel's float16 weights by rounding, relative to their norm. Normal
    numbers are rounded by less, and numbers next to zero by more. bfloat16 may have eight times as much."""
    most_phase_waste: float = 4.0
    """Most multiplications of a transposed convolution's phases, relative to those that it needs. If the stride does
    not divide the window, phases are padded with zeros to one size."""
    broadcast_permutation_share: float = 1 / 64
    """The cost of a permutation of a broadcast operand, relative to one that is not broadcast, if extents are
    symbolic. Nothing was measured."""
    sunk_operators: int = 4
    """Operators between a transposition and a reduction behind which it is put."""
    small_operand_share: float = 1 / 8
    """Elements of an operand that is transposed for that, for each element of the operator's result. Not measured."""
    product_permutation_cost: float = 3.0
    """The cost of a permutation of a product's result, relative to others. Without it, the product's kernel may
    compute the operators that follow. Nothing was measured."""
    few_positions: int = 64
    large_weight: int = 1 << 20
    """Positions of an image's windows, and elements of a weight that no second-level cache holds. TVM's convolution
    on a CPU is faster for fewer positions with a larger weight. For 7x7 positions and 512 channels it reached 60
    GFLOP/s against 45. For 14x14 and 256 channels the figures are 75 against 94."""
