"""Items of the Responses API and what is read in them: each type of item and of block, and each odd shape of one."""

from __future__ import annotations

from typing import Any

from openmem_hook.model import Part
from tests.formats.examples import (
    Example,
    as_json,
    blank,
    call,
    compaction,
    example,
    media,
    opaque,
    result,
    server,
    text,
    thinking,
)
from tests.kit import responses_words as r

NOTICE = "<environment_context>here</environment_context>"
FILE = {"type": "input_file", "file_id": "file_1"}
AUDIO = {"type": "input_audio", "input_audio": {"data": "eA==", "format": "wav"}}
SCREENSHOT = {"type": "computer_screenshot", "image_url": "data:image/png;base64,eA=="}
OUTPUTS = [{"stdout": "ok", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
TOOLS = [{"type": "namespace", "name": "crm", "tools": [r.tool("crm_list")]}, r.tool("other"), {"name": 7}, "odd"]
SERVER_ITEMS = (
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_call",
    "mcp_list_tools",
    "mcp_approval_request",
)


def of_user(*blocks: Any) -> Any:
    return {"type": "message", "role": "user", "content": list(blocks)}


def search(call_id: str | None, tools: Any) -> Any:
    return {"type": "tool_search_output", "call_id": call_id, "id": "tso_1", "tools": tools}


USER: dict[str, Example] = {
    "a bare string": example("Fix it.", "user", "typed", text("Fix it.")),
    "a bare notice": example(NOTICE, "user", "notice", Part("notice", NOTICE)),
    "words as a string": example({"role": "user", "content": "Fix it."}, "user", "typed", text("Fix it.")),
    "words as a block": example(r.user("Fix it."), "user", "typed", text("Fix it.")),
    "words without the type of an item": example(
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]}, "user", "typed", text("hi")
    ),
    "words of another API": example(of_user({"type": "text", "text": "hi"}), "user", "typed", text("hi")),
    "a picture": example(r.user(r.image("eA==")), "user", "typed", media("image")),
    "a file": example(of_user(FILE), "user", "typed", media("document")),
    "a sound": example(of_user(AUDIO), "user", "typed", media("audio")),
    "a client's notice": example(r.user(NOTICE), "user", "notice", Part("notice", NOTICE)),
    "nothing": example(r.user(""), "user", "notice", blank()),
    "no blocks": example(of_user(), "user", "typed"),
}

RESULTS: dict[str, Example] = {
    "an output": example(r.output("call_1", "a\nb"), "tool", "result", result("function", "call_1", "a\nb")),
    "an output of blocks": example(
        r.output("call_1", [{"type": "input_text", "text": "a"}, r.image("eA==")]),
        "tool",
        "result",
        result("function", "call_1", "a", media=("image",)),
    ),
    "an output of a custom tool": example(
        r.custom_output("call_1", "Done"), "tool", "result", result("custom", "call_1", "Done")
    ),
    "an output of the local shell": example(
        r.shell_output("call_1"), "tool", "result", result("local_shell", "call_1", "ok")
    ),
    "an output of the local shell with an id alone": example(
        {"type": "local_shell_call_output", "id": "call_1", "output": "ok"},
        "tool",
        "result",
        result("local_shell", "call_1", "ok"),
    ),
    "an output of the shell": example(
        {"type": "shell_call_output", "call_id": "call_1", "output": OUTPUTS},
        "tool",
        "result",
        result("shell", "call_1", as_json(OUTPUTS[0]), text_alone=False),
    ),
    "an output of a patch": example(
        {"type": "apply_patch_call_output", "call_id": "call_1", "status": "completed", "output": "ok"},
        "tool",
        "result",
        result("apply_patch", "call_1", "ok"),
    ),
    "a picture of the screen": example(
        {"type": "computer_call_output", "call_id": "call_1", "output": SCREENSHOT},
        "tool",
        "result",
        result("computer", "call_1", media=("image",)),
    ),
    "an output that is an object": example(
        r.output("call_1") | {"output": {"a": "b"}}, "tool", "result", result("function", "call_1", '{"a":"b"}')
    ),
    "an output of a tool search": example(
        search("call_1", TOOLS),
        "tool",
        "result",
        result(
            "tool_search",
            "call_1",
            "\n".join(map(as_json, TOOLS)),
            references=("crm", "crm_list", "other", ""),
            text_alone=False,
        ),
    ),
    "an output of the provider's own tool search": example(
        search(None, [r.tool("crm_list")]),
        "assistant",
        "reply",
        result("tool_search", "tso_1", as_json(r.tool("crm_list")), references=("crm_list",), text_alone=False),
    ),
}

OUTPUT: dict[str, Example] = {
    "a reply": example(r.assistant("Done.", "msg_1"), "assistant", "reply", text("Done.")),
    "a refusal": example(
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        "assistant",
        "reply",
        text("No."),
    ),
    "a call": example(
        r.call("call_1", path="a.py", lines=[1]),
        "assistant",
        "call",
        call("function", "call_1", "exec_command", "path: a.py\nlines: [1]"),
    ),
    "a call of a custom tool": example(
        r.custom_call("call_1"), "assistant", "call", call("custom", "call_1", "apply_patch", "*** Begin Patch")
    ),
    "a call of the local shell": example(
        r.shell_call("call_1"),
        "assistant",
        "call",
        call("local_shell", "call_1", "local_shell", 'type: exec\ncommand: ["ls"]\nenv: {}'),
    ),
    "a call of the shell": example(
        {"type": "shell_call", "call_id": "call_1", "action": {"commands": ["ls"]}},
        "assistant",
        "call",
        call("shell", "call_1", "shell", 'commands: ["ls"]'),
    ),
    "a patch": example(
        {"type": "apply_patch_call", "call_id": "call_1", "operation": {"path": "a.py"}},
        "assistant",
        "call",
        call("apply_patch", "call_1", "apply_patch", "path: a.py"),
    ),
    "a click": example(
        {"type": "computer_call", "call_id": "call_1", "id": "cu_1", "action": {"type": "click"}},
        "assistant",
        "call",
        call("computer", "call_1", "computer", "type: click"),
    ),
    "a tool search": example(
        {"type": "tool_search_call", "call_id": "call_1", "id": "tsc_1", "arguments": {"q": "crm"}},
        "assistant",
        "call",
        call("tool_search", "call_1", "tool_search", "q: crm"),
    ),
    "the provider's own tool search": example(
        {"type": "tool_search_call", "call_id": None, "id": "tsc_1", "arguments": {"q": "crm"}},
        "assistant",
        "call",
        call("tool_search", "tsc_1", "tool_search", "q: crm"),
    ),
    "encrypted reasoning": example(r.reasoning("rs_1", "eA=="), "assistant", "reasoning", thinking("", "eA==")),
    "reasoning with its summary and text": example(
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "Hm."}, {"type": "summary_text", "text": ""}],
            "content": [{"type": "reasoning_text", "text": "Well."}],
        },
        "assistant",
        "reasoning",
        thinking("Hm.\nWell."),
    ),
    **{
        f"an item of the provider: {name}": example(
            {"type": name, "id": "ws_1", "status": "completed"},
            "assistant",
            "call",
            server({"type": name, "status": "completed"}),
        )
        for name in SERVER_ITEMS
    },
    **{
        f"a compaction: {name}": example(
            {"type": name, "id": "cmp_1", "encrypted_content": "eA=="},
            "assistant",
            "compaction",
            compaction({"type": name, "id": "cmp_1", "encrypted_content": "eA=="}),
        )
        for name in ("compaction", "compaction_summary", "context_compaction")
    },
}

SYSTEM: dict[str, Example] = {
    "a developer message": example(r.developer("Be brief."), "system", "system", text("Be brief.")),
    "a system message": example({"role": "system", "content": "Be brief."}, "system", "system", text("Be brief.")),
    "tools beside the conversation": example(
        {"type": "additional_tools", "role": "developer", "id": "at_1", "tools": []},
        "unknown",
        "unknown",
        opaque({"type": "additional_tools", "role": "developer", "tools": []}),
    ),
}

ODD: dict[str, Example] = {
    "an item of a new type": example(
        {"type": "new_item", "id": "new_1", "value": 1.5},
        "unknown",
        "unknown",
        opaque({"type": "new_item", "value": 1.5}),
    ),
    "an item that refers to another": example(
        {"type": "item_reference", "id": "msg_1"}, "unknown", "unknown", opaque({"type": "item_reference"})
    ),
    "a type that is a list": example(
        {"type": ["message"], "role": "user"}, "unknown", "unknown", opaque({"type": ["message"], "role": "user"})
    ),
    "a type that is empty": example(
        {"type": "", "role": "user"}, "unknown", "unknown", opaque({"type": "", "role": "user"})
    ),
    "a type that is null": example({"type": None, "role": "user", "content": "hi"}, "user", "typed", text("hi")),
    "a block of a new type": example(of_user({"type": "new"}), "user", "typed", opaque({"type": "new"})),
    "a block without a type": example(of_user({"text": "hi"}), "user", "typed", opaque({"text": "hi"})),
    "a block whose type is an object": example(of_user({"type": {}}), "user", "typed", opaque({"type": {}})),
    "a block that is a list": example(of_user(["hi"]), "user", "typed", opaque(["hi"])),
    "a block that is null": example(of_user(None), "user", "typed", opaque(None)),
    "text that is a number": example(of_user({"type": "input_text", "text": 7}), "user", "notice", blank()),
    "content that is null": example({"role": "user", "content": None}, "user", "typed"),
    "content that is missing": example({"role": "user"}, "user", "typed"),
    "content that is one block": example(
        {"role": "user", "content": {"type": "input_text", "text": "hi"}}, "user", "typed", text("hi")
    ),
    "a call with numbers": example(
        {"type": "function_call", "call_id": 7, "name": 7, "arguments": 7},
        "assistant",
        "call",
        call("function", "", "", "7"),
    ),
    "a call without anything": example(
        {"type": "function_call"}, "assistant", "call", call("function", "", "function", "null")
    ),
    "a call with no JSON for arguments": example(
        {"type": "function_call", "call_id": "call_1", "name": "read", "arguments": "{half"},
        "assistant",
        "call",
        call("function", "call_1", "read", "{half"),
    ),
    "an output without output": example(
        {"type": "function_call_output", "call_id": "call_1"}, "tool", "result", result("function", "call_1")
    ),
    "an output that is a number": example(
        r.output("call_1") | {"output": 7}, "tool", "result", result("function", "call_1", "7", text_alone=False)
    ),
    "an output whose type is a list": example(
        r.output("call_1") | {"output": {"type": []}}, "tool", "result", result("function", "call_1", '{"type":[]}')
    ),
    "an output with a number for an id": example(
        {"type": "function_call_output", "call_id": 7, "output": "ok"}, "tool", "result", result("function", "", "ok")
    ),
    "an output of a tool search that is no list": example(
        search("call_1", "no"), "tool", "result", result("tool_search", "call_1", "no")
    ),
    "reasoning without anything": example({"type": "reasoning"}, "assistant", "reasoning", thinking()),
    "reasoning with a string and a number": example(
        {"type": "reasoning", "summary": "Hm.", "content": 7, "encrypted_content": 7},
        "assistant",
        "reasoning",
        thinking("Hm."),
    ),
    "a role that is new": example({"role": "root", "content": "hi"}, "unknown", "unknown", text("hi")),
    "a role that is missing": example({"content": "hi"}, "unknown", "unknown", text("hi")),
    "an empty object": example({}, "unknown", "unknown"),
    "null": example(None, "unknown", "unknown", opaque(None)),
    "a number": example(7, "unknown", "unknown", opaque(7)),
    "a list": example(["hi"], "unknown", "unknown", opaque(["hi"])),
}

EXAMPLES = USER | RESULTS | OUTPUT | SYSTEM | ODD
