"""What runs the plugin for the tests: in process, over a failing store, behind the real gateway.

Unlike the kit, which judges, it imports the plugin.
"""
