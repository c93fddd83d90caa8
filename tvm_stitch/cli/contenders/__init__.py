# SPDX-License-Identifier: Apache-2.0
"""The contenders of ``tvm-stitch bench``: each is prepared and timed in a process of its own."""
