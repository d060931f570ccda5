"""The dtypes, which are torch's."""

from thalweg.v1.dtypes import *
from thalweg.v1.dtypes import __all__ as __all__
