"""Published results of the reproduced papers, as CSV files.

curves.csv and tables.csv are read by `analysis.published`, settings.csv (data statistics, run times, penalties) by
`analysis.published_settings`.
"""
