# SPDX-License-Identifier: Apache-2.0
"""Templates of CPUs: matrix products, convolutions and attention."""
