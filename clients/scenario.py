"""A short session with everything that a client does once: what is recorded of it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from clients.drivers import Client, use
from clients.oracles import rewritten
from clients.recording import Recording, Scrubber, read, traits, write
from clients.session import Session, noting

PROMPTS = ("kit: please begin.", "kit: look around.", "kit: go on.", "kit: what was said.", "kit: another way.")


def play(session: Session) -> None:
    """Tools, a sub-agent, a search, a forced trim in each form, the client's own compaction, a fork."""
    client = session.client
    begin, look, on, said, another = PROMPTS
    file = session.place.project / "notes.txt"
    file.write_text("a note\n")
    session.work(begin, 3, client.read(file))
    session.work(on, 5, client.delegate(f"{look}\n[[calls:2 size:600 tool:{client.shell}]]"))
    for form in client.forced.values():
        session.say(way=form)
    session.say(f"{said}\n{client.reach}{use('smart_compact_search', query='note')}")
    session.work(on, 5)
    before = session.turns()[-1]
    session.compact()
    session.work(on, 1)
    session.say(f"{another}\n[[calls:1 size:300]]", client.fork)
    threads = session.threads()
    assert len(threads) == 3, "main agent, sub-agent, fork"
    assert all(len(turns) >= 2 for turns in threads.values())
    assert any(rewritten(before.asked, turn.asked, turn.note["route"]) for turn in threads[before.thread])


def record(client: Client) -> None:
    """Plays it and keeps what the client sent. Traits that are known from elsewhere stay."""
    with tempfile.TemporaryDirectory() as folder, noting(Path(folder) / "gateway", client.trim_at) as behind:
        session = Session(client, *behind, Path(folder))
        play(session)
        session.holds()
        turns = session.every()
    seen = set().union(*(traits(turn.headers, turn.asked) for turn in turns))
    scrubber = Scrubber()
    requests = tuple(scrubber.request(turn.headers, turn.asked) for turn in turns)
    write(client.name, Recording(read(client.name).traits | seen, requests))
