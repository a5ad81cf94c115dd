"""results.db: schema, writer, readers as pandas frames, export to CSV and Parquet."""
