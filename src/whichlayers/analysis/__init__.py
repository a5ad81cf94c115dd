"""Statistics on the results of a study: intervals, paired tests, effects of layers, power, and the papers' claims."""
