"""No trainer asks a hub for anything."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read when the libraries are imported
