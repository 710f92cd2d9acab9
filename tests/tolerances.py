"""How far two computations of one number may lie apart: an estimate of rounding for the tiny models of these tests.

In float32 an operation errs by at most u = 6e-8, relatively. The longest path to a logit passes, for each of 2 to 4
steps, dot products of 16 (norm), 16 (query, key, value), 8 (scores), 16 (attention), 16 (output), 16 (norm), 16 (up)
and 32 to 48 (down) terms, then a norm, the head and a logarithm of 40 to 300 terms: some 450 to 900 operations. Their
errors add up like a random walk, to 30 u = 2e-6, and those of two computations to 3e-6; on another CPU, or with other
threads, in another order.
"""

LOSS = 1e-5
"""Relative; of losses (means of logarithms of about 4): three times the estimate."""
GRADIENT = 1e-4
"""Relative; of a gradient's norm: the way back is as long again, and its sums over positions lose about a digit."""
SCHEDULE = 1e-5
"""Relative; of a learning rate: five operations, of which `1 + cos` loses a digit at a tenth of the peak."""
