# SPDX-License-Identifier: Apache-2.0
"""Ways to map rows that stay in a block or cluster, one file each."""
