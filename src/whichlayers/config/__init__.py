"""The parts of a study file: sections, value types, errors with line numbers, TOML."""
