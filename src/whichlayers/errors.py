"""The base class of all errors that a user can fix."""

from __future__ import annotations


class WhichlayersError(Exception):
    """An error in the input. The message says what is wrong, what is allowed and what to do."""


CarryoverError = WhichlayersError  # its name in version 0.1
