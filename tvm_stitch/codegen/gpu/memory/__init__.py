# SPDX-License-Identifier: Apache-2.0
"""How a block's threads move data between memory, shared memory and registers."""
