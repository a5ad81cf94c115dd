"""Published results of the reproduced papers (curves.csv, tables.csv), read by `analysis.published`."""
