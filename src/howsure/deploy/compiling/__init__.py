"""Predictions as compiled code: `Uncertain.compile()`."""

from howsure.deploy.compiling.compiled import Compiled as Compiled
