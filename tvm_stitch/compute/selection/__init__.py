# SPDX-License-Identifier: Apache-2.0
"""The largest or smallest elements of rows, as kernels that read a row once."""
