"""Attackers of the engine, of files and of programs. Each makes a case from random numbers and returns what did not hold.

test_attacks.py is their list. They know only public names. Fix what they find, and add a test with fixed values.
"""
