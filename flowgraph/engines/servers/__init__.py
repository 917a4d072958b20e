"""What engines with servers of their own share: environments, processes, requests and routing."""
