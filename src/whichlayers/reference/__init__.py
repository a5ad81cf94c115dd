"""Published numbers to set beside ours, as data: curves.csv, tables.csv. `analysis.published` reads them."""
