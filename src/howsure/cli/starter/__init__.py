"""The example project that `howsure init` writes; its files are in `project/`, as they are."""

from howsure.cli.starter.write import write_project as write_project
