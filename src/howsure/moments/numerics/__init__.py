"""The numerics below the moment rules: normal tails, quadrature, squared weights."""
