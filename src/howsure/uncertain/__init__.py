"""What most users touch: a model with its noise and a method, and several of them as one."""

from howsure.uncertain.ensemble import Ensemble
from howsure.uncertain.wrapper import Uncertain

__all__ = ["Ensemble", "Uncertain"]
