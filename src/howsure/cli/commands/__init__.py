"""The commands, one file each: `HELP`, `EXAMPLES`, `add(parser)`, `run(arguments) -> Result`.

What needs torch is imported inside `run`, so that help and completion come at once.
"""
