"""The lab: models, data, runs, sweeps and reports that rerun the paper's experiments."""
