# SPDX-License-Identifier: Apache-2.0
"""Random graphs: grown from a seed, built by a front end, checked against float64."""
