"""An independent oracle: strict providers, simulated caches, scripted agents and builders of bodies.

Nothing here imports the project under test: a mistake in one must not hide the same mistake in the other.
"""
