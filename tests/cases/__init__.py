"""Bugs that people reported in public against tools that change an agent's requests, each as a test of this one."""
