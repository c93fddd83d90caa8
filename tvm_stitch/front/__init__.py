# SPDX-License-Identifier: Apache-2.0
"""The front door: models as people have them are compiled, and called with the arrays that people have."""
