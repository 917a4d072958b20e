"""The workload of a step: lengths, batches, rows, tokens and bytes, independent of devices."""
