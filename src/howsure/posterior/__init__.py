"""Epistemic variance from a posterior over multipliers; functions of tensors, without a model."""
