"""Figures: matplotlib for files, the same as data for the report page."""
