# SPDX-License-Identifier: Apache-2.0
"""Small models with random weights as importers emit them, each with its inputs and its float64 reference."""
