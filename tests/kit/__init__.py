"""An independent oracle: strict providers, simulated caches, scripted agents and builders of bodies.

Nothing here imports what it judges: a mistake in one must not hide the same mistake in the other. What the command
`openmem replay` judges by as well lives in `openmem_hook.replay.provider`, under the same rule.
"""
