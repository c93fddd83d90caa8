# SPDX-License-Identifier: Apache-2.0
"""Random graphs, which grow from a seed. A front end builds them, and their results are checked against float64."""
