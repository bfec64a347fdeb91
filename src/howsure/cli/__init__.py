"""The command `howsure`; see docs/cli.md. Nothing here imports torch before a command runs."""

from howsure.cli.program import main as main
