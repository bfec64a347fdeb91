"""The demonstration: a trained network steers by camera, and says how sure it is."""
