"""Arguments shared by several commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

StudyFolderPath = Annotated[
    Path,
    typer.Argument(metavar="STUDY", help="Folder of a study, a file in it, or its study file."),
]
