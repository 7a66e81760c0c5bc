"""One page with all that is known of a run: HTML with plots, that needs nothing else."""
