# SPDX-License-Identifier: Apache-2.0
"""CPU templates: matrix products, convolutions and attention."""
