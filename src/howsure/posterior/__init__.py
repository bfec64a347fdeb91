"""What known inputs leave open: a posterior over multipliers, and the variance made from it."""
