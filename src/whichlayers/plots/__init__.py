"""Figures: drawn with matplotlib for the files, and exported as chart data for the report page."""
