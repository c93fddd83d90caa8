# SPDX-License-Identifier: Apache-2.0
"""Architectures of other people's packages, small and with random weights, by family."""
