"""Building blocks of study files: sections, value types, TOML helpers and errors with line numbers."""
