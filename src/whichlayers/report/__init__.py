"""What the results look like: figures, tables, the page. Every number comes from `analysis`."""
