"""Exercises of phase 5: sources, and their graders."""
