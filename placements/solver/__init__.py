"""Choose options for blocks of roles: numbers alone, without graphs, devices or engines."""
