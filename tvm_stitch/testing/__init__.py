# SPDX-License-Identifier: Apache-2.0
"""Models and operator chains that the documentation compiles."""
