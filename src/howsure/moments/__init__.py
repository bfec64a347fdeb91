"""The paper's propagation: means and variances through a network, by a table of moment rules."""
