"""What a step asks of its models: lengths, batches, rows, tokens and bytes, on no device yet."""
