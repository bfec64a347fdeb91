"""Steering angles from one camera: rendered roads, or the Udacity drives (Table I of the paper)."""
