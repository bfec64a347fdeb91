"""A policy that others trained flies a quadrotor: the std of its motor commands, by Monte Carlo."""
