"""Exercises of phase 4: sources, and their graders."""
