"""The makers of results.db files are shared with the tests of the analysis."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "analysis"))
