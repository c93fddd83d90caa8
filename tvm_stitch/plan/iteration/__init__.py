# SPDX-License-Identifier: Apache-2.0
"""What is iterated: a domain of rows and columns, operators aligned with it, and the loops over a row."""
