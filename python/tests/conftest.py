"""What all tests share: pictures are drawn without a screen."""

import os

os.environ["MPLBACKEND"] = "agg"
