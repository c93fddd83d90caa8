# SPDX-License-Identifier: Apache-2.0
"""Move transpositions, reshapes, pads and splits to where they cost least."""
