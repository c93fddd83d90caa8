# SPDX-License-Identifier: Apache-2.0
"""Fast Fourier transforms as kernels of a CPU."""
