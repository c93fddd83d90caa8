# SPDX-License-Identifier: Apache-2.0
"""CUDA: matrix products by NVIDIA's cuBLASLt, convolutions by cuDNN, and this package's kernels."""
