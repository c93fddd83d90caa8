# SPDX-License-Identifier: Apache-2.0
"""Tools for testing stitched code. Running CUDA kernels needs the package in ``python/cuda-emulator``."""
