"""Row keys and fingerprints of fixed histories, as the first release computed them.

A store finds a message by its key, and a running session by the fingerprint of its past: with other values here,
every session that a store holds would begin anew after an update, and be trimmed at other places.
"""

from __future__ import annotations

import pytest

from openmem_hook.formats import adapter_named
from openmem_hook.formats.decode import decode
from openmem_hook.model import HistoryCache
from tests.kit import builders as a
from tests.kit.builders import FORMATS, Format, Json, chat, responses

BODIES: dict[Format, Json] = {
    "anthropic": a.body(
        a.user(a.reminder(), a.marked(a.text("  Fix the parser. \n")), a.image()),
        a.assistant(a.thinking(), a.text("Let me look."), a.tool_use("toolu_1", path="a.py", lines=[1, 2.0])),
        a.results(a.tool_result("toolu_1", [a.text("def f():"), a.reference("Found")], is_error=True)),
        a.user(a.reminder()),
        a.assistant(a.redacted()),
        a.assistant(*a.server_search("srvtoolu_1"), {"type": "compaction", "content": "So far."}),
        a.mixed(a.tool_result("toolu_2", "späte Antwort \ud800"), "And the tests."),
        a.system("The user sent a new message while you were working: hurry"),
        a.user({"type": "new_block", "value": [10**20, None, True]}, a.document()),
    ),
    "chat": chat.body(
        chat.system("You are a coding agent."),
        chat.user("Fix the parser."),
        {**chat.assistant("", chat.call("call_1", path="a.py")), "reasoning_content": "Hm."},
        chat.result("call_1", [chat.text("def f():")]),
        {"role": "assistant", "function_call": {"name": "legacy", "arguments": "no JSON"}},
        {"role": "function", "name": "legacy", "content": "ok"},
        {"role": "assistant", "content": None, "reasoning": "Only thinking."},
        chat.developer("Be brief."),
        chat.user(chat.image("aGk="), {"type": "file", "file": {"file_id": "file_1"}}),
    ),
    "responses": responses.body(
        responses.developer("You are a coding agent."),
        responses.user("Fix the parser.", responses.image("aGk=")),
        responses.reasoning("rs_1"),
        responses.call("call_1", path="a.py"),
        responses.output("call_1", "def f():"),
        responses.custom_call("call_2"),
        responses.custom_output("call_2"),
        responses.shell_call("call_3"),
        responses.shell_output("call_3"),
        responses.web_search("ws_1"),
        {"type": "tool_search_call", "call_id": None, "id": "tsc_1", "arguments": {"q": "crm"}},
        {"type": "tool_search_output", "call_id": None, "id": "tso_1", "tools": [responses.tool("crm_list")]},
        {"type": "compaction", "id": "cmp_1", "encrypted_content": "eA=="},
        {"type": "new_item", "id": "new_1", "value": 1.0},
        {"role": "user", "content": "Go on."},
    ),
}
KEYS: dict[Format, list[str]] = {
    "anthropic": [
        "82d3439b5e56cef684db78cb7d11f5c3",
        "c17aa19f8e90db90afc79167b4c30c45",
        "d82f730e5fe009529e1c9adb0fb038ce",
        "3e43782911fe5236e0abbfb351e48fe0",
        "1d7ed3b46c6dda776f2ee84ef20fd20f",
        "278c23bd82eb8e7779eff09fca61c434",
        "5b43cfff2dfce0e5fcac85d3697ce664",
        "3732cfe49a087db507efa16071285eef",
        "6975a202f9825c5e4504097eb9319eaf",
    ],
    "chat": [
        "b76e9fb29bc21199cdf93962e39a2991",
        "5d8f32b07dd8cdaedf31ea9f06e43691",
        "df84c084048c0654a7b1e5786747c559",
        "492533a4382978564bf9fccff231a815",
        "388d162b889aca0487b7ef42a97f4327",
        "a4778a568d84b79c9b08809e1f158a50",
        "0d1eab013a411fca3755a85735bca585",
        "4cecaa1b51e71a8f55f8c6bd749c908b",
        "5add32bf5c3cdd544f9fae15ac9311d1",
    ],
    "responses": [
        "b76e9fb29bc21199cdf93962e39a2991",
        "9eb67ac7cdbd2f81123670985d035359",
        "3663080e3e68e4feaeb1e1b819091312",
        "4aca240b2716209e93ef42a6c38b6f33",
        "f7ded88320a2f2b2076cbdcb682b77cd",
        "cf96ff0009757025bc6c9865ecfe89e5",
        "5e50f1e637379e7368ec951858f6a681",
        "cdf9187ddf35c800721a3fbe0fe8cff3",
        "6b661e69e3bad6fa329f06427f27d52a",
        "e0462c231944bbd879710d3c1f8872fd",
        "a5f87b24b2ef300aaf07d9cad1524309",
        "4814b9930f526e1ad018b5d6d092b223",
        "f697e58b40597434eee69905e4b919e3",
        "df7fb26d8ac3c3dee59842d4882e949e",
        "404389f0ca8211407ba99355719032cc",
    ],
}


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_history_has_the_keys_that_stores_of_the_first_release_hold(fmt: Format) -> None:
    adapter = adapter_named(fmt)
    assert adapter is not None
    history = decode(adapter, BODIES[fmt], HistoryCache())
    assert [key.hex() for key in history.keys] == KEYS[fmt]
    assert history.chain[-1] == history.keys[-1]
