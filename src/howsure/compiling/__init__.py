"""Predictions as compiled code: `Uncertain.compile()`."""

from howsure.compiling.compiled import Compiled as Compiled
