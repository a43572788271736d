"""Sizes, learned rates and attribution."""

from __future__ import annotations

import base64
import json
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from openmem_hook import tokens
from openmem_hook.tokens import ZERO, Calibration, Sizes, attribute, estimate, learn, measure, starting

PROSE = "The quick brown fox reads the file and writes a test for it, then runs the suite again. " * 40
CODE = '  if (result["id"] != 0x1F) { total += items[i].count * 2; }  // see #42\n' * 40
NOISE = bytes((i * i * 31 + i * 7 + (i >> 3) * 101) % 251 for i in range(750_000))
BASE64 = base64.b64encode(NOISE).decode()
COLD = starting("unknown")


def cost(text: str, kind: str = "result", calibration: Calibration = COLD) -> float:
    return estimate(calibration, measure(kind, text))


def taught(words: float, marks: float, rounds: int = 60, start: Calibration = COLD) -> Calibration:
    """A calibration after exchanges with a provider that counts letters and marks at these rates."""
    for i in range(rounds):
        sizes = measure("result", PROSE * (1 + i % 3) + CODE * (1 + i % 5))
        start = learn(start, sizes, round(sizes.words * words + sizes.marks * marks))
    return start


# Sizes


def test_sizes_add_and_subtract_field_by_field() -> None:
    one, two = measure("text", PROSE), measure("args", CODE) + tokens.media("image")
    assert one + two - two == one
    assert one - one == ZERO


def test_sizes_read_back_from_their_counts() -> None:
    sizes = measure("args", CODE) + tokens.thinking("hm", 1000)
    assert Sizes(*json.loads(json.dumps(sizes.counts()))) == sizes


@given(st.text())
def test_each_character_of_a_text_is_counted_in_one_class(text: str) -> None:
    sizes = measure("text", text)
    letters = sum(not char.isascii() and not "\u2000" <= char <= "\u2fff" for char in text)
    assert sizes.words + sizes.marks + sizes.dense + letters == len(text)
    assert min(sizes.counts()) >= 0


def test_lone_surrogates_are_measured_like_other_letters() -> None:
    assert measure("text", "a\ud800b").words == 2


def test_a_long_text_measures_as_its_pieces_do() -> None:
    text = (PROSE + CODE) * 40
    cut = tokens.CHUNK
    pieces = measure("text", text[:cut]) + measure("text", text[cut:])
    assert measure("text", text) == pieces - Sizes(parts=1)


def test_no_call_sees_more_than_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def chunk(text: str) -> tuple[int, int, int, int]:
        seen.append(len(text))
        return 0, 0, 0, 0

    monkeypatch.setattr(tokens, "_measure_chunk", chunk)
    measure("result", "x" * 2_000_000)
    assert sum(seen) == 2_000_000
    assert max(seen) <= 32_768


@pytest.mark.parametrize(
    "text", [PROSE * 300, CODE * 350, BASE64, base64.encodebytes(NOISE).decode(), "汉字" * 500_000]
)
def test_a_megabyte_is_measured_in_no_time(text: str) -> None:
    begun = time.perf_counter()
    measure("result", text[:1_000_000])
    assert time.perf_counter() - begun < 0.15  # 4 to 15 ms on a quiet machine


# Dense and wide text, media, thinking


@pytest.mark.parametrize("text", [BASE64, base64.encodebytes(NOISE).decode(), NOISE.hex()[:1_000_000]])
def test_a_megabyte_of_base64_or_hex_counts_a_token_for_about_one_and_a_half_characters(text: str) -> None:
    for calibration in (COLD, taught(0.19, 0.85), taught(0.1, 0.1)):
        assert 1.3 < len(text) / cost(text, calibration=calibration) < 1.7


def test_a_data_url_inside_markdown_is_dense() -> None:
    text = f"![chart](data:image/png;base64,{BASE64[:40_000]})\n" + PROSE
    assert measure("result", text).dense == pytest.approx(40_000, rel=0.01)


@pytest.mark.parametrize(
    "text",
    [
        "/Users/dev/workspace/project/packages/server/integration/testdata/fixtures/" * 20,
        "=" * 5000,
        "-" * 5000,
        "a_very_long_snake_case_identifier_that_goes_on_and_on_for_more_than_sixty_four" * 10,
    ],
)
def test_paths_rules_and_long_names_are_not_dense(text: str) -> None:
    assert measure("result", text).dense == 0


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [("汉字测试" * 250, 0.65, 1.3), ("русский" * 150, 0.2, 0.8), ("😀🎉🚀" * 300, 1.0, 3.0), ("─│┌→" * 250, 0.2, 1.2)],
)
def test_other_scripts_count_within_the_bounds_of_real_tokenizers(text: str, least: float, most: float) -> None:
    for calibration in (COLD, taught(0.19, 0.85)):
        assert least < cost(text, calibration=calibration) / len(text) < most


@pytest.mark.parametrize(("kind", "least", "most"), [("image", 1000, 2500), ("document", 3000, 20_000)])
def test_media_have_a_fixed_budget_whatever_was_learned(kind: str, least: float, most: float) -> None:
    for calibration in (COLD, taught(0.1, 0.1), taught(0.5, 2.0)):
        assert least < estimate(calibration, tokens.media(kind)) < most


def test_sixty_blobs_of_encrypted_reasoning_are_not_small() -> None:
    sizes = sum([tokens.opaque(6000) for _ in range(60)], ZERO)
    assert 45_000 < estimate(COLD, sizes) < 90_000


def test_a_signature_says_how_much_was_thought_where_the_text_is_a_summary() -> None:
    assert tokens.thinking("x" * 300, 632).thinking == 300
    assert tokens.thinking("x" * 300, 6000).thinking > 4000
    assert tokens.thinking("x" * 300).thinking == 300
    assert tokens.thinking("", 6000).opaque > 5000


def test_thinking_is_all_that_thought_holds() -> None:
    sizes = tokens.thinking("x" * 300) + tokens.opaque(6000)
    assert (sizes + measure("args", CODE)).thinking_part() == sizes - Sizes(parts=2)


# Starting


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("claude-opus-4-5-20251101", 2.6),
        ("anthropic/claude-sonnet-4-20250514", 2.6),
        ("us.anthropic.claude-3-5-sonnet-20241022-v2:0", 2.6),
        ("claude-opus-4-7", 1.75),
        ("openrouter/anthropic/claude-opus-4.7", 1.75),
        ("claude-sonnet-5", 1.75),
        ("openai/gpt-5.5", 3.2),
        ("gpt-5.3-codex-spark", 3.2),
        ("my-alias", 2.5),
    ],
)
def test_each_family_starts_at_its_characters_per_token(model: str, expected: float) -> None:
    text = "word and 1 mark\n" * 1000
    assert len(text) / (cost(text, "text", starting(model)) - tokens.PART_TOKENS) == pytest.approx(expected, rel=0.01)


def test_explicit_characters_per_token_win_over_the_family() -> None:
    assert cost("a" * 40_000, "text", starting("claude-opus-4-7", 4.0)) == pytest.approx(10_000, rel=0.01)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        starting("x", rate)


@pytest.mark.parametrize(
    ("model", "drops"),
    [
        ("claude-sonnet-4-5-20250929", True),
        ("claude-haiku-4-5", True),
        ("claude-opus-4-1-20250805", True),
        ("claude-3-7-sonnet-20250219", True),
        ("claude-opus-4-5-20251101", False),
        ("anthropic/claude-sonnet-4-6", False),
        ("claude-sonnet-5", False),
        ("gpt-5.5", True),
        ("openai/o3", True),
        ("my-alias", False),
    ],
)
def test_models_that_drop_earlier_thinking_are_known(model: str, drops: bool) -> None:
    assert tokens.drops_thinking(model) is drops


# Learning


@pytest.mark.parametrize(("words", "marks"), [(0.19, 0.85), (0.3, 0.3), (0.25, 0.25), (0.57, 0.57), (0.27, 1.2)])
def test_learning_finds_the_rate_of_any_usual_provider(words: float, marks: float) -> None:
    calibration = taught(words, marks)
    for text in (PROSE * 20, CODE * 20, (PROSE + CODE) * 20):
        sizes = measure("result", text)
        assert estimate(calibration, sizes) == pytest.approx(sizes.words * words + sizes.marks * marks, rel=0.1)


def test_a_model_that_changed_behind_its_name_is_learned_again() -> None:
    calibration = taught(0.3, 1.2, start=taught(0.19, 0.85, rounds=400))
    sizes = measure("result", (PROSE + CODE) * 20)
    assert estimate(calibration, sizes) == pytest.approx(sizes.words * 0.3 + sizes.marks * 1.2, rel=0.1)


@pytest.mark.parametrize("count", [0, -1, -50_000, 1, 10**9])
def test_nonsense_teaches_nothing(count: int) -> None:
    assert learn(COLD, measure("result", PROSE * 10), count) == COLD


def test_nothing_teaches_nothing() -> None:
    assert learn(COLD, ZERO, 500) == COLD
    assert learn(COLD, ZERO - measure("text", PROSE), 500) == COLD


def test_media_and_mostly_dense_text_teach_nothing() -> None:
    for odd in (tokens.media("image"), tokens.media("document"), measure("result", BASE64)):
        sizes = measure("result", PROSE) + odd
        assert learn(COLD, sizes, round(estimate(COLD, sizes) * 1.2)) == COLD


def test_one_outlier_moves_a_learned_rate_little() -> None:
    calibration, sizes = taught(0.19, 0.85), measure("result", (PROSE + CODE) * 5)
    before = estimate(calibration, sizes)
    assert estimate(learn(calibration, sizes, round(before * 3)), sizes) < before * 1.15


sizes_of_anything = st.builds(
    Sizes,
    *[st.integers(-(10**6), 10**7)] * 2,
    *[st.integers(-(10**5), 10**6)] * 4,
    *[st.integers(0, 1)] * 2,
    *[st.integers(-100, 1000)] * 2,
)


@given(st.lists(st.tuples(sizes_of_anything, st.integers(-(10**9), 10**9)), max_size=40))
def test_whatever_is_observed_the_weights_stay_in_bounds_and_read_back(seen: list[tuple[Sizes, int]]) -> None:
    calibration = COLD
    for sizes, count in seen:
        calibration = learn(calibration, sizes, count)
        assert Calibration.from_json(calibration.to_json()) == calibration


ROUNDED = [
    (61, 20000, 1.1939429044426881), (5745, 6110, 0.6040703603805408), (2817, 486, 1.169333655419958),
    (302, 7805, 0.125), (1, 413, 1.306640625), (5191, 13219, 1.169333655419958), (1908, 48272, 0.6036552179445929),
    (525, 0, 0.52734375), (1205, 377, 0.599609375), (1, 413, 1.306640625), (1527, 287, 0.5),
]  # fmt: skip
"""A variance whose square, as a power, is rounded to more than its product with itself."""


@given(st.lists(st.tuples(st.integers(0, 50_000), st.integers(0, 50_000), st.floats(0.05, 2.0)), max_size=200))
@example(ROUNDED)
def test_contradicting_reports_never_lead_out_of_bounds(seen: list[tuple[int, int, float]]) -> None:
    calibration = COLD
    for words, marks, rate in seen:
        calibration = learn(calibration, Sizes(words, marks, parts=3, calls=1), round((words + marks) * rate))
    assert Calibration.from_json(calibration.to_json()) == calibration


def test_a_thousand_equal_observations_neither_freeze_nor_blow_up() -> None:
    calibration = taught(0.3, 0.3, rounds=1000)
    assert all(0 < calibration.doubt[i][i] < 1 for i in range(4))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "{}",
        "[1]",
        '{"weights": [9, 1, 1, 1], "doubt": [], "seen": 0}',
        COLD.to_json().replace("0.4", "NaN"),
        COLD.to_json().replace("0.0625", "-1"),
        COLD.to_json().replace('"seen": 0.0', '"seen": "x"'),
    ],
)
def test_what_is_no_calibration_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Calibration.from_json(text)


# Attribution


def test_a_difference_is_spread_in_proportion_and_adds_up() -> None:
    shares = attribute([measure("text", PROSE), measure("text", PROSE * 3)], 4000, COLD)
    assert shares is not None
    assert sum(shares) == pytest.approx(4000)
    assert shares[1] / shares[0] == pytest.approx(3, rel=0.02)


def test_thinking_that_left_is_not_charged_to_what_came() -> None:
    came, left = measure("text", PROSE * 4), Sizes(thinking=20_000)
    true = 4000
    shares = attribute([came], round(true - estimate(COLD, left)), COLD, left)
    assert shares is not None
    assert shares[0] == pytest.approx(true, abs=1)


@pytest.mark.parametrize("delta", [-25_000, 0, 300, 200_000])
def test_a_difference_that_can_t_be_theirs_is_nobody_s(delta: int) -> None:
    assert attribute([measure("result", PROSE * 10)] * 2, delta, COLD) is None


def test_a_small_span_may_cost_a_reminder_more() -> None:
    assert attribute([measure("text", "yes")], 1200, COLD) == pytest.approx((1200,))


def test_no_messages_take_no_tokens() -> None:
    assert attribute([], 100, COLD) is None
