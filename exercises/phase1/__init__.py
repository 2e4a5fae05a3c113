"""Exercises of phase 1: sources, and their graders."""
