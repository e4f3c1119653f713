"""What users do with records: a file for each workload."""
