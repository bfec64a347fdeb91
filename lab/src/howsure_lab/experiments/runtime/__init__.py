"""Likelihood and time against the number of samples (Fig. 7 of the paper)."""
