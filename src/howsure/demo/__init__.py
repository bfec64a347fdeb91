"""The demonstration: a small trained network reads digits from a noisy sensor."""
