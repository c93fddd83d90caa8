# SPDX-License-Identifier: Apache-2.0
"""Data movement of a block's threads between memory, shared memory and registers."""
