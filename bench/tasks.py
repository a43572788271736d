"""Two synthetic tasks, the same for the same seed: what an agent is told, line by line, and what it is asked later.

Key-value: batches of 100 `SET` lines, a key and 24 random words with a tag; 24 `GET`s. In the variant with overwrites
a tenth of the lines sets a key again, and the newest value counts. Log triage: batches of 14 to 54 lines as services
write them; 12 lines are looked up by request id, 12 kinds of lines are counted.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

QUESTIONS = 24
BATCH = 100
SHORTEST_BATCH, LONGEST_BATCH = 14, 54
OVERWRITTEN = 0.1
WORDS_A_VALUE = 24
SERVICES = ("auth", "billing", "cart", "mailer", "search", "stock")
LEVELS = ("DEBUG", "INFO", "INFO", "INFO", "WARN", "ERROR")
TAG = re.compile(r"#[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class Question:
    """`line` finds a line that answers it, the answer its first group; a count is of the lines that it finds. `search`
    and `sql` are what a caller of the tools would send. `stale`: what was right before it was overwritten."""

    typed: str
    answer: str
    line: re.Pattern[str]
    search: Mapping[str, str]
    sql: str
    counts: bool = False
    stale: frozenset[str] = frozenset()

    def right(self, said: str | None) -> bool:
        return said == self.answer

    def near(self, said: str | None) -> bool:
        """Leniently: the right tag, whatever stands around it; a count that is off by no more than one in a hundred."""
        if said is None:
            return False
        if self.counts:
            return said.isdecimal() and abs(int(said) - int(self.answer)) <= int(self.answer) / 100
        return TAG.findall(said) == TAG.findall(self.answer)


@dataclass(frozen=True, slots=True)
class Task:
    name: str
    batches: Sequence[Sequence[str]]
    questions: Sequence[Question] = field(repr=False)


def key_value(records: int, overwrites: bool = False) -> Task:
    """`R4000`: so many `SET` lines; `R4000 overwritten`: a tenth of them sets an earlier key again."""
    draw = random.Random(f"R{records}{overwrites}")
    numbers = draw.sample(range(10_000, 100_000), records)
    values: dict[str, list[str]] = {}
    lines = []
    for at, number in enumerate(numbers):
        again = overwrites and at and draw.random() < OVERWRITTEN
        key = draw.choice(list(values)) if again else f"K{number}"
        values.setdefault(key, []).append(_value(draw))
        lines.append(f"SET {key} = {values[key][-1]}")
    asked = _asked(draw, values, overwrites)
    batches = [lines[at : at + BATCH] for at in range(0, len(lines), BATCH)]
    name = f"R{records}{' overwritten' if overwrites else ''}"
    return Task(name, batches, [_get(key, values[key]) for key in asked])


def _asked(draw: random.Random, values: Mapping[str, Sequence[str]], overwrites: bool) -> list[str]:
    """Keys to ask for; half of them overwritten ones in the variant that has them."""
    again = sorted(key for key, told in values.items() if len(told) > 1)
    chosen = draw.sample(again, QUESTIONS // 2) if overwrites else []
    rest = sorted(values.keys() - set(again))
    return chosen + draw.sample(rest, QUESTIONS - len(chosen))


def _get(key: str, told: Sequence[str]) -> Question:
    return Question(
        typed=f"GET {key}",
        answer=told[-1],
        line=re.compile(rf"^SET {key} = (.*)$", re.MULTILINE),
        search={"query": f'"SET {key}"'},
        sql="SELECT lines.text FROM lines_fts JOIN lines ON lines.id = lines_fts.rowid "
        f"WHERE lines_fts MATCH '\"SET {key}\"' ORDER BY lines.seq DESC, lines.line_no DESC LIMIT 1",
        stale=frozenset(told[:-1]),
    )


def log_triage(lines: int) -> Task:
    """`L1600`: so many log lines."""
    draw = random.Random(f"L{lines}")
    told = [_log_line(draw, at) for at in range(lines)]
    batches, at = [], 0
    while at < lines:
        size = draw.randint(SHORTEST_BATCH, LONGEST_BATCH)
        batches.append(told[at : at + size])
        at += size
    looked_up = [_look_up(line) for line in draw.sample(told, QUESTIONS // 2)]
    kinds = draw.sample([(level, service) for level in sorted(set(LEVELS)) for service in SERVICES], QUESTIONS // 2)
    return Task(f"L{lines}", batches, [*looked_up, *(_count(told, *kind) for kind in kinds)])


_TIME = r"2026-\d\d-\d\dT\d\d:\d\d:\d\dZ"


def _log_line(draw: random.Random, at: int) -> str:
    time = (
        f"2026-{1 + at // 40_320:02}-{1 + at // 1440 % 28:02}T{at // 60 % 24:02}:{at % 60:02}:{draw.randrange(60):02}Z"
    )
    request = f"req-{draw.getrandbits(40):010x}"
    words = " ".join(_word(draw) for _ in range(draw.randint(6, 12)))
    return f"{time} {draw.choice(LEVELS)} {draw.choice(SERVICES)} {request} {words} {_tag(draw)}"


def _look_up(line: str) -> Question:
    request, _, said = line.split(" ", 3)[3].partition(" ")
    return Question(
        typed=f"What does the line of {request} say?",
        answer=said,
        line=re.compile(rf"^{_TIME} \w+ \w+ {request} (.*)$", re.MULTILINE),
        search={"query": f'"{request}"'},
        sql="SELECT lines.text FROM lines_fts JOIN lines ON lines.id = lines_fts.rowid "
        f"WHERE lines_fts MATCH '\"{request}\"' AND lines.text LIKE '2026-%' ORDER BY lines.id LIMIT 1",
    )


def _count(lines: Sequence[str], level: str, service: str) -> Question:
    return Question(
        typed=f"How many lines of level {level} has the service {service}?",
        answer=str(sum(f" {level} {service} req-" in line for line in lines)),
        line=re.compile(rf"^{_TIME} {level} {service} req-", re.MULTILINE),
        search={"pattern": rf"^{_TIME} {level} {service} req-"},
        sql=f"SELECT count(*) FROM lines WHERE text LIKE '2026-__-__T__:__:__Z {level} {service} req-%'",
        counts=True,
    )


_BEGIN = ("ba", "co", "du", "fe", "gi", "ho", "ka", "lu", "me", "no", "pra", "sto", "tri", "ve", "zo")
_END = ("dan", "fer", "gon", "lem", "mit", "nar", "pel", "ran", "sor", "tin", "vok", "x")


def _word(draw: random.Random) -> str:
    return draw.choice(_BEGIN) + draw.choice(_BEGIN) * draw.randint(0, 1) + draw.choice(_END)


def _tag(draw: random.Random) -> str:
    return f"#{draw.getrandbits(32):08x}"


def _value(draw: random.Random) -> str:
    return f"{' '.join(_word(draw) for _ in range(WORDS_A_VALUE))} {_tag(draw)}"


Make = Callable[[], Task]

TASKS: tuple[Make, ...] = (
    *((lambda size=size: key_value(size)) for size in (1_000, 4_000, 16_000, 64_000)),
    *((lambda size=size: key_value(size, overwrites=True)) for size in (1_000, 4_000, 16_000, 64_000)),
    *((lambda size=size: log_triage(size)) for size in (1_600, 6_400, 12_800, 25_600)),
)
"""The last of each kind is a step beyond the sizes in which such tasks are usually given."""
