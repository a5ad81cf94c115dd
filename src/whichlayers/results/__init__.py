"""The results database of a study (results.db): schema, writer, readers as data frames, export."""
