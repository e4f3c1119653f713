"""The numbered life of a checkpoint: recover, plan, stage, commit, report."""
