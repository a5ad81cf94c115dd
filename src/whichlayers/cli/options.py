"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

StudyFolderPath = Annotated[
    Path,
    typer.Argument(metavar="STUDY", help="The folder of a study, a file in it, or the study file beside it."),
]
