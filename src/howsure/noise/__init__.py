"""Sensor noise: the variance of an input, stated, or identified from data; see docs/noise.md."""

from howsure.noise.base import Noise as Noise
from howsure.noise.camera import fit_poisson_gaussian as fit_poisson_gaussian
from howsure.noise.config import from_config as from_config
from howsure.noise.config import to_config as to_config
from howsure.noise.constant import gray_levels as gray_levels
from howsure.noise.constant import imu as imu
from howsure.noise.constant import per_channel as per_channel
from howsure.noise.constant import quantisation as quantisation
from howsure.noise.constant import std as std
from howsure.noise.constant import variance as variance
from howsure.noise.identified import CameraFit as CameraFit
from howsure.noise.identified import Identified as Identified
from howsure.noise.inputs import NoiseLike as NoiseLike
from howsure.noise.inputs import as_noise as as_noise
from howsure.noise.inputs import described as described
from howsure.noise.inputs import roots_of as roots_of
from howsure.noise.inputs import sample_of as sample_of
from howsure.noise.inputs import scaled as scaled
from howsure.noise.inputs import variance_of as variance_of
from howsure.noise.repeats import identify_from_repeats as identify_from_repeats
from howsure.noise.signal import custom as custom
from howsure.noise.signal import poisson_gaussian as poisson_gaussian
from howsure.noise.signal import range_dependent as range_dependent
from howsure.noise.single_image import identify_from_image as identify_from_image
