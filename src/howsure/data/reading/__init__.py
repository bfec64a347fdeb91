"""Models, weights and data from files. Nothing that a file holds is unpickled or evaluated."""

from howsure.data.reading.files import Choice as Choice
from howsure.data.reading.files import Data as Data
from howsure.data.reading.files import Inputs as Inputs
from howsure.data.reading.files import Preparation as Preparation
from howsure.data.reading.files import Source as Source
from howsure.data.reading.files import open_data as open_data
from howsure.data.reading.models import Model as Model
from howsure.data.reading.models import load_checkpoint as load_checkpoint
from howsure.data.reading.models import load_model as load_model
from howsure.data.reading.models import load_weights as load_weights
