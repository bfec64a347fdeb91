"""Regression on small tables: the UCI data sets with their standard splits."""
