# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers: cells, and the kernel of a layer on a CPU."""
