# SPDX-License-Identifier: Apache-2.0
"""Matrix products of CUDA devices by NVIDIA's cuBLASLt: how one is laid out, and the function that has it computed."""
