# SPDX-License-Identifier: Apache-2.0
"""Write expressions and kernels so that TVM's simplifier, its code generators and ptxas keep their meaning."""
