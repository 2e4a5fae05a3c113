"""Exercises of phase 3: sources, and their graders."""
