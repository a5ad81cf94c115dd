"""Reports of a study: findings in text, tables, and a self-contained HTML page. All numbers come from `analysis`."""
