"""Commands that measure: ratios within one run, after a warm-up, medians."""
