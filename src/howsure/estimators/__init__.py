"""Moments of a function of standard normal numbers; no model, no structure, no batch axis here."""
