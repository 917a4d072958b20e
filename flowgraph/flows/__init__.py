"""Flows as users name them: in files, shipped, in installed packages; and where each setting comes from."""
