"""Exercises of phase 2: sources, and their graders."""
