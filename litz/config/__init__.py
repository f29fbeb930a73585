"""The settings of Litz: typed flags, read and assigned as attributes of this package.

In: `litz.config.max_fusion_size = 1`, `litz.config.patch({"cpp.threads": 1})`, `LITZ_DEBUG=2`.
Out: `litz.config.snapshot()`, the frozen `Config` of one compile. No stage reads this package's
attributes: each takes its `Config` as an argument.
"""

import os
import sys

from litz.config.flags import FLAGS, Config, Flag
from litz.config.modes import MODES, list_mode_options, list_options
from litz.config.settings import ConfigModule, Settings
from litz.config.values import allowed_text, type_text

__all__ = [
    "Config",
    "Flag",
    "FLAGS",
    "MODES",
    "patch",
    "snapshot",
    "list_options",
    "list_mode_options",
    "allowed_text",
    "type_text",
]

_settings = Settings(os.environ)
patch = _settings.patch
snapshot = _settings.snapshot

# A module's `__getattr__` can compute missing attributes, but only a class can check assignments.
sys.modules[__name__].__class__ = ConfigModule
