# SPDX-License-Identifier: Apache-2.0
"""Products and convolutions that a library or a CUDA kernel of this package computes."""
