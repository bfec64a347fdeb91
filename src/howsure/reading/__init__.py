"""Models, weights and data from files, with checks before anything large is read."""

from howsure.reading.choice import Choice as Choice
from howsure.reading.choice import Group as Group
from howsure.reading.data import Data as Data
from howsure.reading.data import open_data as open_data
from howsure.reading.limits import Limits as Limits
from howsure.reading.models import load_model as load_model
from howsure.reading.prepared import Preparation as Preparation
from howsure.reading.source import Inputs as Inputs
from howsure.reading.source import Source as Source
from howsure.reading.weights import load_weights as load_weights
