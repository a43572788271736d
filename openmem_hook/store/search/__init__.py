"""The read side of a session: search by words or pattern with exact counts, and single messages.

Every call has a read-only connection of its own and one snapshot (`database.read_only`), so that it never holds up
the writer.
"""
